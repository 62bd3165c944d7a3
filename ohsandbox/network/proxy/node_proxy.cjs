// Loaded by NODE_OPTIONS=--require into each Node process of a sandbox whose way out is a proxy.
// Node reads HTTPS_PROXY by itself from 22.21 and 24.5 on, where NODE_USE_ENV_PROXY is set. For older ones this gives
// `fetch` and the module `https` connections through the proxy's CONNECT. Whatever fails here leaves Node as it is.
"use strict";
const [major, minor] = process.versions.node.split(".").map(Number);
const readsProxy = major > 24 || (major === 24 && minor >= 5) || (major === 22 && minor >= 21);
const address = process.env.HTTPS_PROXY || process.env.https_proxy;
if (!readsProxy && address) {
  try {
    install(new URL(address));
  } catch {}
}

function install(proxy) {
  const http = require("http"), https = require("https"), net = require("net"), tls = require("tls");
  const direct = (process.env.NO_PROXY || process.env.no_proxy || "").split(",").map((one) => one.trim()).filter(Boolean);
  const isDirect = (host) => direct.some((one) => host === one || host.endsWith("." + one.replace(/^\./, "")));

  // tunnel(host, port, done): a socket that leads there, or the error
  function tunnel(host, port, done) {
    const target = `${host.includes(":") ? `[${host}]` : host}:${port}`;
    const request = http.request({
      agent: false, host: proxy.hostname, port: proxy.port || 80, method: "CONNECT", path: target, headers: { host: target },
    });
    request.once("connect", (response, socket) => {
      if (response.statusCode === 200) return done(null, socket);
      socket.destroy();
      const told = response.statusMessage ? ` (${response.statusMessage})` : "";
      done(new Error(`The proxy of the sandbox answers ${response.statusCode}${told} for ${target}`));
    });
    request.once("error", done);
    request.end();
  }

  function secure(options, done) {
    const host = options.hostname || options.host || "localhost";
    const servername = options.servername || (net.isIP(host) ? "" : host);
    tunnel(host, options.port || 443, (error, socket) => {
      if (error) return done(error);
      const secured = tls.connect({ ...options, path: undefined, socket, servername });
      once(secured, "secureConnect", done);
    });
  }

  function once(socket, event, done) {
    socket.once("error", done);
    socket.once(event, () => {
      socket.removeListener("error", done);
      done(null, socket);
    });
  }

  const own = https.Agent.prototype.createConnection;
  https.Agent.prototype.createConnection = function (options, done) {
    const host = options.hostname || options.host || "localhost";
    if (options.socketPath || options.socket || isDirect(host) || typeof done !== "function") {
      return own.apply(this, arguments);
    }
    secure(options, done);
  };

  // The class of undici's agents, which Node does not export, is that of the dispatcher that `fetch` has after a call.
  const key = Symbol.for("undici.globalDispatcher.1"), plainFetch = globalThis.fetch;
  globalThis.fetch = function fetch(...given) {
    if (!globalThis[key]) plainFetch("data:,").catch(() => {});
    globalThis.fetch = plainFetch;
    const Agent = globalThis[key] && globalThis[key].constructor;
    if (Agent && Agent.name === "Agent") globalThis[key] = new Agent({ connect });
    return plainFetch(...given);
  };

  function connect(options, done) {
    const isSecure = options.protocol === "https:", host = options.hostname;
    if (isSecure && !isDirect(host)) {
      return secure({ host, port: options.port, servername: options.servername, ALPNProtocols: ["http/1.1"] }, done);
    }
    const where = { host, port: options.port || (isSecure ? 443 : 80), servername: options.servername };
    const socket = (isSecure ? tls : net).connect(where);
    once(socket, isSecure ? "secureConnect" : "connect", done);
  }
}
