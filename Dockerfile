# The sidecar alone. `make image` builds it with docker or podman. The base must have Python 3.11 or 3.12 at `python3`:
# the pinned requirements are resolved for 3.11 and newer, and the wheel builds on nothing newer than 3.12.
ARG BASE_IMAGE=python:3.12-slim

FROM ${BASE_IMAGE} AS build
# requirements/image-otel.txt for an image that can make spans.
ARG REQUIREMENTS=requirements/image.txt
WORKDIR /src
# pip stays in this stage: the environment that is shipped has none.
RUN python3 -m venv /opt/build && python3 -m venv --without-pip /opt/routing-hint-sidecar
COPY requirements/image.txt requirements/image-otel.txt requirements/
RUN /opt/build/bin/pip --python /opt/routing-hint-sidecar/bin/python install --no-cache-dir \
        --disable-pip-version-check --require-hashes --no-deps --only-binary :all: -r "${REQUIREMENTS}"
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY proto proto
COPY routing_hints routing_hints
COPY worker_client worker_client
COPY sidecar sidecar
RUN /opt/build/bin/pip wheel --no-cache-dir --disable-pip-version-check --no-deps --wheel-dir /wheels . \
    && /opt/build/bin/pip --python /opt/routing-hint-sidecar/bin/python install --no-cache-dir \
        --disable-pip-version-check --no-index --no-deps /wheels/*.whl \
    && mkdir /empty

FROM ${BASE_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="routing-hint-sidecar" \
    org.opencontainers.image.description="Keeps each conversation on the attention-DP rank that holds its KV cache" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/routing-hint-sidecar /opt/routing-hint-sidecar
# Where the socket is by default; a volume is mounted over it where a worker is to see it.
COPY --from=build --chown=65532:65532 /empty /run/routing-hints
ENV PATH=/opt/routing-hint-sidecar/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
STOPSIGNAL SIGTERM
# Asks at $ROUTING_HINTS_LISTEN, so set that rather than --listen.
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s --retries=3 CMD ["routing-hint-sidecar", "probe"]
ENTRYPOINT ["routing-hint-sidecar"]
CMD ["serve"]
