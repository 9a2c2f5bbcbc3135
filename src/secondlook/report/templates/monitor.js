// The page of a monitor.
startTimeline(JSON.parse(byId("data").textContent));
document.querySelectorAll(".scroll").forEach(markOverflow);
