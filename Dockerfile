# ohsandbox itself, and (target `dev`) the place it is developed in. It drives the engine whose socket it is given:
#
#   docker build --tag ohsandbox --build-arg COMMIT="$(git rev-parse HEAD)" .
#   docker run --rm -it --user "$(id -u)" --group-add "$(stat -c %g /var/run/docker.sock)" \
#     -v /var/run/docker.sock:/var/run/docker.sock -v ohsandbox:/home/ohsandbox -v "$PWD:$PWD" -w "$PWD" \
#     ohsandbox run --image python:3.12 --workspace .
#
# The volume `ohsandbox` keeps conversations and settings; without it they end with the container. A project that is mounted
# under its own name is told from others there. --group-add lets an ordinary user use the socket.
#
# Behind a proxy, or with a package index of one's own, by secrets that stay out of the image:
#   --secret id=ca,src=/etc/ssl/certs/ca-certificates.crt
#   --secret id=pip.conf,src=$HOME/.config/pip/pip.conf     or  --secret id=PIP_INDEX_URL
# Another base: --build-arg BASE_IMAGE=NAME@sha256:..., whose digest `docker buildx imagetools inspect NAME` prints
ARG BASE_IMAGE=python:3.12.14-slim-trixie@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea

# --- a Python with venv ------------------------------------------------------------------------
FROM ${BASE_IMAGE} AS python
# a base may have an ordinary user; what is shipped has one of its own
# hadolint ignore=DL3002
USER 0
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
COPY .ci/hatch_build.py .ci/
RUN --mount=type=secret,id=ca --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=PIP_INDEX_URL --mount=type=secret,id=PIP_EXTRA_INDEX_URL \
    --mount=type=cache,target=/root/.cache/pip \
    set -eu; . /opt/secrets; \
    mkdir ohsandbox; touch ohsandbox/__init__.py; \
    pip install --quiet '.[web]'

# --- development: the source is mounted over /src ----------------------------------------------
FROM dependencies AS dev
# the client alone is docker-cli from Debian 13 on, a part of docker.io before, which has no plug-ins
RUN --mount=type=secret,id=ca \
    set -eu; . /opt/secrets; \
    apt-get update; \
    client="docker-cli docker-buildx docker-compose"; apt-cache show docker-cli >/dev/null 2>&1 || client=docker.io; \
    apt-get install -y --no-install-recommends git less make openssh-client $client; \
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

# --- the command, in an environment without what only builds need ------------------------------
FROM dependencies AS command
COPY ohsandbox ohsandbox
# what `ohsandbox --version` names: no repository is in here
ARG COMMIT=
# pip stays: it says which package index is used. litellm's administration pages are for its own server; bytecode is kept of what is imported
RUN --mount=type=secret,id=ca --mount=type=secret,id=pip.conf \
    --mount=type=secret,id=PIP_INDEX_URL --mount=type=secret,id=PIP_EXTRA_INDEX_URL \
    --mount=type=cache,target=/root/.cache/pip \
    set -eu; . /opt/secrets; \
    [ -z "$COMMIT" ] || echo "$COMMIT" >ohsandbox/commit; \
    pip install --quiet --no-deps --force-reinstall .; \
    rm -rf /opt/ohsandbox/lib/python3*/site-packages/litellm/proxy/_experimental/out; \
    find /opt/ohsandbox -type d -name __pycache__ -prune -exec rm -rf {} +; \
    python -m compileall -q /opt/ohsandbox/lib/python3*/site-packages/ohsandbox; \
    LITELLM_LOCAL_MODEL_COST_MAP=True python /src/images/dev/imported

# --- git: one program of 4 MB does what ohsandbox asks of it; the package brings perl and 115 MB more ----
FROM python AS git
RUN --mount=type=secret,id=ca \
    set -eu; . /opt/secrets; \
    apt-get update; \
    apt-get install -y --no-install-recommends git; \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/*

# --- what is shipped -----------------------------------------------------------------------------
FROM ${BASE_IMAGE}
# hadolint ignore=DL3002
USER 0
LABEL org.opencontainers.image.title="ohsandbox" \
      org.opencontainers.image.description="The sandbox that coding agents run in" \
      org.opencontainers.image.licenses="MIT"
# any uid may be given by --user: whoever comes first owns what is below the home
RUN install -d -m 1777 /home/ohsandbox /workspace; \
    useradd --non-unique --uid 1000 --home-dir /home/ohsandbox --no-create-home --shell /bin/sh ohsandbox
# an engine or a sandbox elsewhere is reached by ssh. PACKAGES: others of Debian's, such as
# "docker-cli docker-buildx docker-compose" (130 MB) for images with secrets and tasks with Compose
ARG PACKAGES=
COPY images/dev/secrets /opt/secrets
RUN --mount=type=secret,id=ca \
    set -eu; . /opt/secrets; \
    apt-get update; \
    # hadolint ignore=SC2086
    apt-get install -y --no-install-recommends less openssh-client $PACKAGES; \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/*
COPY --from=git /usr/bin/git /usr/bin/git
# clone calls the other side of the pipe by this name; a base whose libraries are others fails here, not in use
RUN ln -s git /usr/bin/git-upload-pack; git init -q /tmp/here; git clone -q /tmp/here /tmp/there; rm -rf /tmp/here /tmp/there
COPY --from=command /opt/ohsandbox /opt/ohsandbox
COPY images/dev/entrypoint /usr/local/bin/become-owner
ENV PATH=/opt/ohsandbox/bin:$PATH HOME=/home/ohsandbox LANG=C.UTF-8 PYTHONUNBUFFERED=1
USER 1000
WORKDIR /workspace
HEALTHCHECK --interval=60s --timeout=20s --start-period=20s CMD ["ohsandbox", "doctor", "--json"]
ENTRYPOINT ["ohsandbox"]
CMD ["--help"]
