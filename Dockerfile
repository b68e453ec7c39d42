# make dist && docker build -t kedge -f Dockerfile build/dist && docker run --rm kedge demo
FROM debian:13-slim
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates libstdc++6 && \
    rm -rf /var/lib/apt/lists/*
COPY kedge /usr/local
WORKDIR /work
ENTRYPOINT ["kedge"]
