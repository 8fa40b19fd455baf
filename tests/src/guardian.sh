# Starts one server, and ends it when its owner is gone. Run by tests/src/guardian.rs as
#   sh -c <this> guardian DIRECTORY SIGNAL COMMAND...
# in a process group of its own, so that Ctrl-C reaches the owner and not this shell. Standard input is a pipe whose
# only writer is the owner: end of file means that the owner is gone, whatever killed it. Then the server gets SIGNAL,
# ten seconds later KILL, and so do its children that have DIRECTORY on their command line: browsers outlive their driver.
# Then DIRECTORY is deleted. Until then the owner may send lines:
#   start            run COMMAND; answers "started PID", and "ended STATUS" whenever it ends
#   signal NAME      send a signal to the server, if it runs
# DIRECTORY/server.pid holds the pid while the server runs, else "-". Its parent, a subshell of ours, has not reaped it
# as long as the pid stands there, so the pid cannot belong to anybody else.
dir=$1
last=$2
shift 2

run() {
  "$@" >>"$dir/server.log" 2>&1 </dev/null &
  echo $! >"$dir/server.pid.new"
  mv "$dir/server.pid.new" "$dir/server.pid"
  echo "started $!"
  wait $!
  status=$?
  echo - >"$dir/server.pid"
  echo "ended $status"
}

signal() {
  pid=-
  [ ! -f "$dir/server.pid" ] || read -r pid <"$dir/server.pid"
  [ "$pid" != - ] && kill "-$1" "$pid" 2>/dev/null
}

while read -r line argument; do
  case $line in
    start)
      rm -f "$dir/server.pid"
      run "$@" &
      while [ ! -f "$dir/server.pid" ]; do sleep 0.01; done
      ;;
    signal) signal "$argument" ;;
  esac
done

pid=-
[ ! -f "$dir/server.pid" ] || read -r pid <"$dir/server.pid"
children=$(cat "/proc/$pid/task/"*/children 2>/dev/null)
tries=0
signal "$last"
while signal 0 && [ $tries -lt 100 ]; do
  sleep 0.1
  tries=$((tries + 1))
done
signal KILL
for child in $children; do
  grep -qsF "$dir" "/proc/$child/cmdline" && kill -KILL "$child"
done
wait
tries=0
# initdb or the server's children may still be writing.
until rm -rf "$dir" && [ ! -e "$dir" ] || [ $tries -ge 100 ]; do
  sleep 0.1
  tries=$((tries + 1))
done
