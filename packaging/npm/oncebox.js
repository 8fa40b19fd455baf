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

const program = find();
const given = process.argv.slice(2);
// The program takes the place of this process, so that each signal comes to it, and comes once: a
// second one ends it before it has drained.
if (process.execve) process.execve(program, [program, ...given], process.env);
// Node.js below 22.15. Ctrl-C and the end of a terminal come to both by themselves.
const child = spawn(program, given, { stdio: "inherit" });
for (const signal of ["SIGINT", "SIGHUP"]) process.on(signal, () => {});
process.on("SIGTERM", () => child.kill("SIGTERM"));
child.on("error", (error) => {
  console.error(`oncebox: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
