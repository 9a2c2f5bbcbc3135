# The command line with ONNX models, in an image of its own:
#   docker build --tag secondlook .
#   docker run --rm --volume "$PWD:/data" secondlook evaluate --model onnx:model.onnx --data folder:val/ --out run/
# Other frameworks: docker build --build-arg EXTRAS='[torch,hf]' ...
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
ARG EXTRAS=""
COPY --from=build /wheels /wheels
COPY constraints.txt /wheels/
RUN pip install --no-cache-dir --constraint /wheels/constraints.txt "secondlook${EXTRAS} @ file://$(ls /wheels/*.whl)" \
    && rm -r /wheels \
    && useradd --create-home user
USER user
WORKDIR /data
ENTRYPOINT ["secondlook"]
CMD ["--help"]
