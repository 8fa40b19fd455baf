# The image is an OCI layout whose root file system runs by itself, with the entry point and the user
# of deploy/Containerfile.
mkdir layout && tar -xf "$DIST/oncebox-$VERSION-x86_64-linux-gnu-image.tar" -C layout
[ "$(cat layout/oci-layout)" = '{"imageLayoutVersion":"1.0.0"}' ]
python3 - layout "$VERSION" <<'PYTHON'
import json, sys
layout, version = sys.argv[1:]
blob = lambda digest: json.load(open(f"{layout}/blobs/{digest.replace(':', '/')}"))
[manifest] = json.load(open(f"{layout}/index.json"))["manifests"]
assert manifest["annotations"]["org.opencontainers.image.ref.name"] == version, manifest
image = blob(blob(manifest["digest"])["config"]["digest"])
assert (image["os"], image["architecture"]) == ("linux", "amd64"), image
config = image["config"]
assert config["User"] == "65532:65532" and config["Entrypoint"] == ["/oncebox"] and config["Cmd"] == ["relay"], config
assert list(config["ExposedPorts"]) == ["9464/tcp"], config
PYTHON
if [ "$(id -u)" != 0 ]; then echo "LEFT OUT: chroot needs root" && exit 0; fi
"$GO/umoci" unpack --image "layout:$VERSION" bundle
[ "$(chroot --userspec=65532:65532 bundle/rootfs /oncebox --version)" = "oncebox $VERSION" ]
# It reaches for a host by name and says so: the C library in there finds names.
code=0
chroot --userspec=65532:65532 bundle/rootfs /oncebox status --database-url postgres://nobody.invalid/orders 2>log || code=$?
[ "$code" = 69 ]
grep 'nobody.invalid:5432/orders cannot be reached' log
grep -q 'BEGIN CERTIFICATE' bundle/rootfs/etc/ssl/certs/ca-certificates.crt
[ ! -e bundle/rootfs/bin/sh ]
