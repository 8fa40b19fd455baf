// The shop of ../serving.ts under NestJS, on Express, and under Hono, on Node's server: frameworks.ts nest|hono.
import "reflect-metadata";
import { createServer, type IncomingMessage } from "node:http";
import { getRequestListener, type HttpBindings } from "@hono/node-server";
import { Controller, Get, type MiddlewareConsumer, Module, type NestModule, Post, Put, Req, RequestMethod, Res } from "@nestjs/common";
import { NestFactory } from "@nestjs/core";
import type { NestExpressApplication } from "@nestjs/platform-express";
import express, { type Request, type Response } from "express";
import { Hono } from "hono";
import { claim, idempotency, keepBody } from "../dist/express.js";
import { act, options, pool, port } from "../serving.ts";

async function nest() {
  class Orders {
    list() {
      return "nothing";
    }

    async place(request: Request, response: Response) {
      const { status, headers = {}, body } = await act(claim(request), request.headers, String(request.body ?? ""));
      response.status(status).set(headers);
      response.end(body);
    }
  }
  // As decorators are called, which Node does not read.
  const decorated = (name: "list" | "place", decorator: MethodDecorator) =>
    decorator(Orders.prototype, name, Object.getOwnPropertyDescriptor(Orders.prototype, name)!);
  Controller("orders")(Orders);
  decorated("list", Get());
  decorated("place", Post());
  for (const [n, parameter] of [Req(), Res()].entries()) {
    parameter(Orders.prototype, "place", n);
  }

  class Shop implements NestModule {
    configure(consumer: MiddlewareConsumer) {
      consumer.apply(idempotency(pool, options)).forRoutes({ path: "orders", method: RequestMethod.ALL });
    }
  }
  Module({ controllers: [Orders] })(Shop);
  const app = await NestFactory.create<NestExpressApplication>(Shop, { bodyParser: false, logger: ["warn", "error"] });
  app.use(express.text({ type: () => true, verify: keepBody }));
  await app.listen(port, "127.0.0.1");
}

function hono() {
  const app = new Hono<{ Bindings: HttpBindings }>();
  app.get("/orders", (c) => c.text("nothing"));
  app.on(["POST", "PUT"], "/orders", async (c) => {
    const { status, headers = {}, body } = await act(claim(c.env.incoming), c.req.header(), await c.req.text());
    // Hono joins the values of a header by itself.
    const [lists, single] = [Object.entries(headers).filter(([, value]) => Array.isArray(value)), Object.entries(headers).filter(([, value]) => !Array.isArray(value))];
    lists.forEach(([name, value]) => c.env.outgoing.setHeader(name, value));
    return new Response(body, { status, headers: Object.fromEntries(single) as Record<string, string> });
  });
  const [once, listener] = [idempotency<IncomingMessage>(pool, { ...options, route: "/orders" }), getRequestListener(app.fetch)];
  createServer((request, response) => void once(request, response, () => void listener(request, response))).listen(port, "127.0.0.1");
}

process.argv[2] === "nest" ? await nest() : hono();
