# The command line with ONNX models, in an image of its own:
#   docker build --tag secondlook .
#   docker run --rm --volume "$PWD:/data" secondlook evaluate --model onnx:model.onnx --data folder:val/ --out run/
# Other frameworks: docker build --build-arg EXTRAS='[torch,hf]' ...
# The service (docs/service.md): docker build --target service --build-arg EXTRAS='[serve]' --tag secondlook-service .
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim AS command
ARG EXTRAS=""
COPY --from=build /wheels /wheels
COPY constraints.txt /wheels/
RUN pip install --no-cache-dir --constraint /wheels/constraints.txt "secondlook${EXTRAS} @ file://$(ls /wheels/*.whl)" \
    && rm -r /wheels \
    && useradd --create-home --uid 10001 user \
    && mkdir /data /service \
    && chown user:user /data /service
USER user
WORKDIR /data
ENTRYPOINT ["secondlook"]

FROM command AS service
# /data has the policy with its model, and may be read-only; /service keeps decisions, images to review and tokens.
VOLUME /service
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
CMD ["serve", "--policy", "policy.json", "--data-dir", "/service", "--host", "0.0.0.0"]

FROM command
CMD ["--help"]
