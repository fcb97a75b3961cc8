# TensorFlow with CUDA and cuDNN as Python packages; the driver's libraries come from the node. See README.md.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}

ARG TENSORFLOW="tensorflow[and-cuda]>=2.21,<2.22"
# What your programs need besides, with versions: "scikit-learn==1.7.2 pandas==2.3.3".
ARG PACKAGES=""
# Compiled here, as a task cannot write what the interpreter would compile at each start.
RUN python3 -m pip install --no-cache-dir --compile "${TENSORFLOW}" ${PACKAGES}

# libcuda for TensorFlow, libnvidia-ml for the look from inside at the GPUs that were promised.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility

# Tasks run as the user of the agent's configuration, by default this one; programs may ask for its name and home.
RUN python3 -c 'import pwd; pwd.getpwuid(1000)' 2>/dev/null || useradd --uid 1000 --create-home trainer
USER 1000:1000
CMD ["python3"]
