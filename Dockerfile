# coterie on a CPU. Build:  docker build -t coterie .
# Train offline:            docker run --rm --network none coterie
# Keep the runs:            docker run --rm -v "$PWD/runs:/coterie/runs" coterie make train PAPER=f3crec
# Serve one of them:        docker run --rm -p 127.0.0.1:8000:8000 -v "$PWD/runs:/coterie/runs" -e COTERIE_TOKEN=... \
#                             coterie .venv/bin/coterie serve --run runs/f3crec/NAME --host 0.0.0.0
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends make git && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 coterie && install -d -o coterie /coterie
USER coterie
WORKDIR /coterie
COPY --chown=coterie . .
# Linux's torch on PyPI brings gigabytes of CUDA. For the build without it, give PyTorch's own index
# of CPU builds (pytorch.org, "Get started"): docker build --build-arg PIP_EXTRA_INDEX_URL=... -t coterie .
ARG PIP_EXTRA_INDEX_URL
ENV PIP_NO_CACHE_DIR=1
RUN make .venv/.installed && .venv/bin/python -m pip install -q -c constraints.txt --no-build-isolation -e "./shared[serve]"
ENV WANDB_MODE=offline
CMD ["make", "train", "PAPER=pplr"]
