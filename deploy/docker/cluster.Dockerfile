# Supervisors and agents in pods (docs/kubernetes.md), with the Python of their tasks. The context is the repository.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}

# The first process of a container has to end with its child, and to reap what others leave behind.
RUN command -v tini >/dev/null || { apt-get update && apt-get install --yes --no-install-recommends tini; }
ARG TENSORFLOW="tensorflow-cpu>=2.21,<2.22"
# What your programs need besides, with versions: "scikit-learn==1.7.2 pandas==2.3.3".
ARG PACKAGES=""
COPY . /src
# In the versions of requirements.lock.
RUN sed -e '/^ *--hash/d' -e '/^ *#/d' -e 's/ *\\$//' /src/requirements.lock >/versions
RUN python3 -m pip install --no-cache-dir --compile --constraint /versions /src "${TENSORFLOW}" ${PACKAGES}

# HDFS without Kerberos asks for a name of its client's user, and programs for a home.
RUN echo tfsup:x:10001:10001::/tmp:/bin/sh >>/etc/passwd && echo tfsup:x:10001: >>/etc/group
USER 10001:10001
ENTRYPOINT ["tini", "--"]
CMD ["supervisorctl", "version"]
