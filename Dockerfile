# The service's image: no torch, no compiler at run time, no root. It writes nothing but what is mounted at /var/lib/pulse,
# so that its root may be read-only; PULSE_* variables are its settings.
#
#   docker build -t pulse-registry .
#   docker build --target tools -t pulse-registry-tools .    with the kernels: for pulse compact, push, pull and verify
#   docker run --read-only -p 127.0.0.1:8080:8080 -e PULSE_ROOT=s3://bucket/policies -e PULSE_TOKENS=... pulse-registry
ARG PYTHON=3.12

FROM docker.io/library/python:${PYTHON}-slim AS build
WORKDIR /src
# What changes seldom comes first, so that it stays in the cache. Not numba: see deploy/requirements.py.
COPY pyproject.toml deploy/requirements.py ./
RUN python requirements.py pyproject.toml > requirements.txt \
    && python -m venv /opt/pulse \
    && /opt/pulse/bin/pip install --no-cache-dir --disable-pip-version-check -r requirements.txt
COPY README.md LICENSE CHANGELOG.md ./
COPY schemas schemas
COPY kernels kernels
COPY pulse_registry pulse_registry
COPY pulse_start pulse_start
COPY server server
RUN python -m pip wheel --no-cache-dir --disable-pip-version-check --no-deps --wheel-dir wheels . \
    && /opt/pulse/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps wheels/*.whl \
    && /opt/pulse/bin/pip uninstall --yes pip \
    && install --directory --owner=10001 --group=10001 /var/lib/pulse

FROM build AS build-tools
RUN python requirements.py pyproject.toml --kernels > kernels.txt \
    && python -m pip --python /opt/pulse/bin/python install --no-cache-dir --disable-pip-version-check -r kernels.txt

FROM docker.io/library/python:${PYTHON}-slim AS runtime
ENV PATH=/opt/pulse/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001

FROM runtime AS tools
COPY --from=build-tools /opt/pulse /opt/pulse
ENTRYPOINT ["pulse"]

FROM runtime AS service
COPY --from=build /opt/pulse /opt/pulse
COPY --from=build --chown=10001:10001 /var/lib/pulse /var/lib/pulse
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/healthz', timeout=4)"]
ENTRYPOINT ["pulse", "serve"]
CMD ["--host", "0.0.0.0", "--port", "8080"]
