# Debian's and RPM's tools install the packages into a root of their own, and the program runs there.
if [ "$(id -u)" != 0 ]; then echo "LEFT OUT: chroot needs root" && exit 0; fi

tar -xzf "$DIST/oncebox-$VERSION-x86_64-linux-gnu.tar.gz"
# The C library, and nothing else.
bare() {
    mkdir -p "$1"/{etc,tmp,var/lib}
    for library in $(ldd "oncebox-$VERSION/bin/oncebox" | grep -oE '/[^ ]+'); do
        install -D "$(realpath "$library")" "$1$library"
    done
}
has_all() {
    [ "$(chroot "$1" /usr/bin/oncebox --version)" = "oncebox $VERSION" ]
    for path in share/man/man1/oncebox.1 share/bash-completion/completions/oncebox lib/systemd/system/oncebox-relay.service \
        share/doc/oncebox/LICENSE-MIT share/doc/oncebox/THIRD-PARTY.txt share/doc/oncebox/oncebox.cdx.json; do
        [ -s "$1/usr/$path" ] || { echo "$1 has no /usr/$path" && exit 1; }
    done
    [ "$(stat --format='%a %u' "$1/etc/oncebox")" = "700 0" ]
    if command -v systemd-analyze >/dev/null; then
        sed "s|/usr/bin/oncebox|$1/usr/bin/oncebox|" "$1/usr/lib/systemd/system/oncebox-relay.service" >oncebox-relay.service
        systemd-analyze verify --man=no "$PWD/oncebox-relay.service" 2>&1 | (! grep oncebox)
    fi
}

deb=$DIST/oncebox_$VERSION-1_amd64.deb
[ "$(dpkg-deb --field "$deb" Depends)" = "libc6 (>= 2.17)" ]
bare "$PWD/debian"
mkdir -p debian/var/lib/dpkg/{info,updates}
touch debian/var/lib/dpkg/{status,available}
# There is no shell in the root: the scripts run outside of it.
dpkg --root="$PWD/debian" --force-depends --force-script-chrootless --install "$deb"
has_all "$PWD/debian"
dpkg --root="$PWD/debian" --force-script-chrootless --remove oncebox
[ ! -e debian/usr/bin/oncebox ]

if ! command -v rpm >/dev/null; then
    install=(apt-get install --yes --quiet --no-install-recommends rpm)
    "${install[@]}" || { apt-get update --quiet && "${install[@]}"; } || {
        echo "LEFT OUT: there is no rpm here (Debian: package rpm)" && exit 0
    }
fi
package=$DIST/oncebox-$VERSION-1.x86_64.rpm
rpm --query --package --requires "$package" | grep -x 'glibc >= 2.17'
rpm --query --package --queryformat '%{LICENSE}' "$package" | grep -x 'MIT OR Apache-2.0'
bare "$PWD/fedora"
rpm --root "$PWD/fedora" --initdb
rpm --root "$PWD/fedora" --install --nodeps --noscripts "$package"
has_all "$PWD/fedora"
