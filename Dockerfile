# ohsandbox itself, and (target `dev`) the place it is developed in. It drives the engine whose socket it is given:
#
#   docker build --tag ohsandbox .
#   docker run --rm -it -v /var/run/docker.sock:/var/run/docker.sock ohsandbox run --image python:3.12
#
# Behind a proxy, or with a package index of one's own, by secrets that stay out of the image:
#   --secret id=ca,src=/etc/ssl/certs/ca-certificates.crt
#   --secret id=pip.conf,src=$HOME/.config/pip/pip.conf     or  --secret id=PIP_INDEX_URL
ARG BASE_IMAGE=python:3.12-slim

# --- a Python with venv ------------------------------------------------------------------------
FROM ${BASE_IMAGE} AS python
USER root
COPY images/dev/secrets /opt/secrets
# Debian's python3 has no ensurepip (`python3 -m venv` exits 1); public Python images have it
RUN --mount=type=secret,id=ca \
    set -eu; . /opt/secrets; \
    python3 -c 'import ensurepip' 2>/dev/null || { \
      apt-get update; \
      apt-get install -y --no-install-recommends ca-certificates python3-venv; \
      rm -rf /var/lib/apt/lists/* /var/cache/apt/*; \
    }; \
    python3 -m venv /opt/ohsandbox
ENV PATH=/opt/ohsandbox/bin:$PATH LANG=C.UTF-8 PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

# --- what it depends on: an empty package, so that a change of the source costs seconds ----------
FROM python AS dependencies
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY images images
RUN --mount=type=secret,id=ca --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=PIP_INDEX_URL --mount=type=secret,id=PIP_EXTRA_INDEX_URL \
    --mount=type=cache,target=/root/.cache/pip \
    set -eu; . /opt/secrets; \
    mkdir ohsandbox; touch ohsandbox/__init__.py; \
    pip install --quiet '.[web]'

# --- development: the source is mounted over /src ----------------------------------------------
FROM dependencies AS dev
# the client alone is docker-cli from Debian 13 on, a part of docker.io before
RUN --mount=type=secret,id=ca \
    set -eu; . /opt/secrets; \
    apt-get update; \
    client=docker-cli; apt-cache show $client >/dev/null 2>&1 || client=docker.io; \
    apt-get install -y --no-install-recommends git less make $client; \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/*
# whoever owns the mounted source may install; to replace a file takes its folder's permission alone
RUN --mount=type=secret,id=ca --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=PIP_INDEX_URL --mount=type=secret,id=PIP_EXTRA_INDEX_URL \
    --mount=type=cache,target=/root/.cache/pip \
    set -eu; . /opt/secrets; \
    pip install --quiet --editable '.[dev]'; \
    cp pyproject.toml /opt/ohsandbox/installed-for; \
    chmod a+w /opt/ohsandbox/installed-for; \
    find /opt/ohsandbox -type d -exec chmod a+w {} +
COPY images/dev/entrypoint /usr/local/bin/become-owner
# `make` in here takes this environment, not the .venv of the host
ENV VENV=/opt/ohsandbox
ENTRYPOINT ["become-owner"]
CMD ["bash"]

# --- the command -------------------------------------------------------------------------------
FROM dependencies
COPY ohsandbox ohsandbox
RUN --mount=type=secret,id=ca --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=PIP_INDEX_URL --mount=type=secret,id=PIP_EXTRA_INDEX_URL \
    --mount=type=cache,target=/root/.cache/pip \
    set -eu; . /opt/secrets; \
    pip install --quiet --no-deps --force-reinstall .
WORKDIR /workspace
ENTRYPOINT ["ohsandbox"]
CMD ["--help"]
