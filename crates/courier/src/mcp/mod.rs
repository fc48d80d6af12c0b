//! The MCP server: tools, resources and prompts for agents, at `/mcp` of the API.
//!
//! ```text
//! client over HTTP ──────────────────► api/mcp.rs     headers and status codes
//! client over stdio ─► cli/mcp.rs ───► the same       one POST per line
//!                                      protocol.rs    which generation of the protocol   pure
//!                                      server.rs      which method
//!                                      tools/         calls `center/` and the store
//!                                      result.rs      text of others between delimiters  pure
//! ```
//!
//! The server keeps no sessions: every request has its token, and a restart of the courier
//! interrupts no client. There is no MCP library behind it: `rmcp` 3.8.0 adds 18 crates and a sixth
//! to the build time of a release, and the part of the protocol that is needed is small.

pub mod agent;
mod budget;
mod prompts;
pub mod protocol;
mod resources;
mod result;
pub mod rpc;
pub mod server;
mod tools;
