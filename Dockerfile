# One image for every process of the product: coordinator, worker, Flower, migration.
ARG PYTHON_IMAGE=python:3.13-slim
FROM ${PYTHON_IMAGE}

# Agents work in a checkout: they need Git, and certificates to reach a provider.
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ca-certificates git \
    && rm -rf /var/lib/apt/lists/*

ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore

WORKDIR /app
COPY requirements-runtime.lock ./
RUN pip install --quiet --require-hashes -r requirements-runtime.lock && pip install --quiet "hatchling>=1.27"

COPY pyproject.toml README.md LICENSE ./
COPY config ./config
COPY team ./team
COPY workers ./workers
COPY examples ./examples
RUN pip install --quiet --no-deps --no-build-isolation . && python -m compileall -q -j 0 /usr/local/lib/python3*/site-packages/team || true

# Not root: a command of an agent is then no more than this user. The folders give new volumes their owner.
RUN useradd --uid 1000 --create-home --shell /bin/bash team \
    && mkdir -p /workspace /data \
    && chown team:team /workspace /data
USER team
ENV TEAM_DATA_DIR=/data TEAM_WORKSPACE_ROOT=/workspace
WORKDIR /workspace

ENTRYPOINT ["team"]
CMD ["--help"]
