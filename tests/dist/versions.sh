# Every package has the version of the workspace.
cd "$ROOT"
has() { grep -qF -- "$2" "$1" || { echo "$1 has not: $2" && exit 1; }; }
has deploy/helm/oncebox/Chart.yaml "version: $VERSION"
has deploy/helm/oncebox/Chart.yaml "appVersion: $VERSION"
has clients/python/pyproject.toml "version = \"$VERSION\""
has clients/typescript/package.json "\"version\": \"$VERSION\""
has clients/typescript/package-lock.json "\"version\": \"$VERSION\""
has deploy/compose.yaml "oncebox:$VERSION"
has deploy/Containerfile "image.version=\"$VERSION\""
has CHANGELOG.md "$VERSION"
for platform in $(grep -oE 'oncebox-bin-[a-z0-9-]+' packaging/npm/package.json | sort -u); do
    system=${platform#oncebox-bin-}
    # The workflow builds each platform that the launcher looks for.
    case $system in
    *-glibc) libc=-gnu ;; *-musl) libc=-musl ;; *) libc= ;;
    esac
    case $system in *x64*) cpu=x86_64 ;; *) cpu=aarch64 ;; esac
    has .github/workflows/release.yml "$cpu-${system%%-*}$libc"
done
