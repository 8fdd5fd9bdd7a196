"""A SuperLink behind a proxy, as containers. Torch-free."""

COMPOSE = """\
# A SuperLink of which nodes reach what they need, and nobody else anything.
#
# Flower's one port serves nodes (/v1/fleet/), but also commands that start and stop runs, without
# asking who sends them. So it is not published; the proxy is, and passes /v1/fleet/ alone. Commands
# are run inside: docker compose exec superlink flwr run /deployment lab
#
# certificates/ holds ca.crt, and server.pem with server.key for the names `superlink`, that of this
# host, and the address 127.0.0.1. COTERIE_IMAGE has coterie-core[flower] and the paper's package.
services:
  superlink:
    image: ${COTERIE_IMAGE:?an image with coterie-core[flower] and the paper's package}
    command: >
      flower-superlink --host 0.0.0.0 --port 8000
      --ssl-certfile /certificates/server.pem --ssl-keyfile /certificates/server.key
      --ssl-ca-certfile /certificates/ca.crt --database /state/state.db
      --enable-supernode-auth --disable-runtime-dependency-installation
    init: true
    restart: unless-stopped
    environment:
      COTERIE_SERVER: /deployment/server
      FLWR_HOME: /deployment/flower
      FLWR_TELEMETRY_ENABLED: "0"
      FLWR_DISABLE_UPDATE_CHECK: "1"
      UV_OFFLINE: "1"
    volumes:
      - ./:/deployment
      - ./certificates:/certificates:ro
      - state:/state
  proxy:
    image: nginx:stable
    restart: unless-stopped
    depends_on: [superlink]
    ports: ["443:443"]
    volumes:
      - ./proxy.conf:/etc/nginx/conf.d/default.conf:ro
      - ./certificates:/certificates:ro
volumes:
  state: {}
"""
CONNECTION = """\
# How flwr reaches the SuperLink, inside its container.
[superlink]
default = "lab"

[superlink.lab]
address = "127.0.0.1:8000"
root-certificates = "/certificates/ca.crt"
"""
PROXY = """\
# Nodes say: coterie node up NODE --superlink HOST:443 --ca ca.crt
server {
    listen 443 ssl;
    ssl_certificate /certificates/server.pem;
    ssl_certificate_key /certificates/server.key;
    client_max_body_size 0;  # a model may be large; Flower sends it in pieces of 5 MB

    location /v1/fleet/ {
        proxy_pass https://superlink:8000;
        proxy_ssl_trusted_certificate /certificates/ca.crt;
        proxy_ssl_verify on;
        proxy_ssl_name superlink;
        proxy_request_buffering off;
        proxy_read_timeout 120s;
    }

    location / {
        return 403;
    }
}
"""
