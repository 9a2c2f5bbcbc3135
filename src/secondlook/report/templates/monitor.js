// The page of a monitor.
const page = JSON.parse(byId("data").textContent);
drawRiskScale(byId("risk-scale"), page.scale);
startTimeline(page);
document.querySelectorAll(".scroll").forEach(markOverflow);
