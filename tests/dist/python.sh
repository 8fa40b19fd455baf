# In a new environment: `pip install` of the wheels gives the program `oncebox`, and the client.
python3 -m venv environment
environment/bin/pip install --quiet --disable-pip-version-check "$DIST/python/oncebox_bin-$VERSION"-*.whl
[ "$(env -i environment/bin/oncebox --version)" = "oncebox $VERSION" ]
environment/bin/pip show --files oncebox-bin | grep 'THIRD-PARTY.txt'
environment/bin/pip check
environment/bin/pip install --quiet --disable-pip-version-check "$DIST/python/oncebox-$VERSION"-*.whl
env -i environment/bin/python -c 'from oncebox import Consumer; print(Consumer.__doc__[:60])'
environment/bin/pip show --files oncebox | grep 'LICENSE-MIT'
environment/bin/pip check
environment/bin/pip uninstall --yes --quiet oncebox-bin
[ ! -e environment/bin/oncebox ]
