# The quickstart in a container: `docker build -t excb . && docker run --rm excb`. Other commands and your own images:
# `docker run --rm --gpus all --shm-size 8g -v "$PWD:/work" excb excb-pretrain photos_small --data photos`.
FROM python:3.12-slim

# torch with CUDA takes gigabytes. Without a GPU, give the index for CPUs that pytorch.org names: --build-arg TORCH_INDEX=...
ARG TORCH_INDEX=
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch torchvision

WORKDIR /excb
COPY . .
RUN pip install --no-cache-dir .

WORKDIR /work
CMD ["excb-pretrain", "quickstart"]
