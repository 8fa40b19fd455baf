# helm lints the chart and renders it with everything on; the result follows Kubernetes' schemas. A
# chart of a service has the relay as a sidecar. Values that nobody knows are refused.
chart=$DIST/helm/oncebox-$VERSION.tgz
# Built without a version of Kubernetes of its own.
helm() { "$GO/helm" "$@" --kube-version 1.29.0; }
validate() {
    PYTHONPATH=$ROOT/.dev/linters python3 "$ROOT/.dev/linters/bin/kubernetes-validate" \
        --strict --quiet --kubernetes-version 1.29 "$@"
}
cat >all.yaml <<'YAML'
migrate: {enabled: true, databases: [orders, stock]}
console: {enabled: true, arguments: [--allow-actions]}
networkPolicy:
  enabled: true
  metricsFrom: [{namespaceSelector: {matchLabels: {name: monitoring}}}]
podMonitor: {enabled: true, labels: {release: prometheus}}
environment: {ONCEBOX_WORKERS: "8"}
podAnnotations: {team: payments}
nodeSelector: {disk: fast}
YAML
helm lint --strict --quiet "$chart"
helm lint --strict --quiet --values all.yaml "$chart"
helm template shop "$chart" >default.yaml
helm template shop "$chart" --values all.yaml >rendered.yaml
validate default.yaml
# The operator for Prometheus has a schema of its own.
awk 'BEGIN { RS = "---\n"; ORS = RS } !/\nkind: PodMonitor/' rendered.yaml >core.yaml
validate core.yaml
count() { [ "$(grep -c "$1" "$2")" = "$3" ] || { echo "$2 has not $3 times: $1" && exit 1; }; }
count '^kind: Deployment' default.yaml 1
count '^kind:' default.yaml 3
for kind in Job PodMonitor Service PodDisruptionBudget; do count "^kind: $kind$" rendered.yaml 1; done
for kind in Deployment NetworkPolicy ConfigMap; do count "^kind: $kind$" rendered.yaml 2; done
count "image: registry.example/oncebox:$VERSION" rendered.yaml 3
count 'readOnlyRootFilesystem: true' rendered.yaml 3
count 'runAsNonRoot: true' rendered.yaml 3
for line in '--database=stock' '"--allow-actions"' '{name: ONCEBOX_WORKERS, value: "8"}' 'team: payments' 'release: prometheus' 'name: monitoring' 'disk: fast'; do
    grep -qF -- "$line" rendered.yaml || { echo "not rendered: $line" && exit 1; }
done
if helm template shop "$chart" --set relay.replica=3 >/dev/null 2>refused; then exit 1; fi
grep -q replica refused

# The relay is configured as its program understands it: the file is taken, and no server is there.
python3 - default.yaml <<'PYTHON'
import sys
text = open(sys.argv[1]).read().split("oncebox.toml: |\n", 1)[1].split("\n---", 1)[0]
text = text.replace("postgres.example", "127.0.0.1:1").replace("?sslmode=verify-full", "")
lines = [line.removeprefix("    ") for line in text.splitlines() if "_file" not in line]
open("relay.toml", "w").write("\n".join(lines).replace("tls://nats.example:4222", "nats://127.0.0.1:1"))
PYTHON
tar -xzf "$DIST/oncebox-$VERSION-x86_64-linux-gnu.tar.gz"
code=0
ONCEBOX_CONFIG=relay.toml "oncebox-$VERSION/bin/oncebox" relay 2>log || code=$?
[ "$code" = 69 ] || { cat log && exit 1; }

mkdir -p service/templates service/charts
cp "$chart" service/charts
printf 'apiVersion: v2\nname: orders\nversion: 1.0.0\ndependencies: [{name: oncebox, version: %s}]\n' "$VERSION" >service/Chart.yaml
printf 'oncebox: {relay: {enabled: false}, sidecar: {enabled: true}}\n' >service/values.yaml
cat >service/templates/orders.yaml <<'YAML'
apiVersion: apps/v1
kind: Deployment
metadata: {name: orders}
spec:
  selector: {matchLabels: {app: orders}}
  template:
    metadata: {labels: {app: orders}}
    spec:
      initContainers: {{ include "oncebox.sidecar" .Subcharts.oncebox | nindent 8 }}
      containers: [{name: orders, image: "registry.example/orders:1.0.0"}]
      volumes: {{ include "oncebox.volumes" .Subcharts.oncebox | nindent 8 }}
YAML
helm template shop service >service.yaml
validate service.yaml
count '^kind: Deployment' service.yaml 1
count '^kind: ConfigMap' service.yaml 1
count 'restartPolicy: Always' service.yaml 1
