# The command line and the server, for a user without rights:
#   docker build -t becausal .
#   docker run --rm -v "$PWD:/work" -u "$(id -u)" becausal explain photo.jpg --model net.onnx
FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.13-slim
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir "$(echo /wheels/*.whl)[serve,endpoint]"
RUN useradd --uid 10001 --create-home becausal && install -d -o becausal /work
USER 10001
ENV MPLCONFIGDIR=/tmp/matplotlib
WORKDIR /work
ENTRYPOINT ["becausal"]
CMD ["--help"]
