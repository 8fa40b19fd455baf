#!/usr/bin/env node
// Runs the program of the package for this platform, which npm has installed beside this one.
"use strict";
const { spawn } = require("node:child_process");
const { constants } = require("node:os");

function find() {
  const platform = `oncebox-bin-${process.platform}-${process.arch}`;
  for (const name of [`${platform}-glibc`, `${platform}-musl`, platform]) {
    try {
      return require.resolve(`${name}/oncebox`);
    } catch {
      // npm installs one of them at most.
    }
  }
  console.error(
    `oncebox: there is no program for ${process.platform} ${process.arch}. ` +
      "Was the package installed with optional dependencies left out?",
  );
  return process.exit(64);
}

// The program drains on SIGTERM, and so this process waits for it instead of ending first.
const child = spawn(find(), process.argv.slice(2), { stdio: "inherit" });
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
child.on("error", (error) => {
  console.error(`oncebox: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
