//! The HTTP API: all routes and the state that handlers share.
//!
//! Handlers translate between HTTP and the store; they contain no domain decisions. Every
//! request over TCP passes [`guard`], and every error is built in [`error`].

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use monoco_store::SharedStore;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::center::PipelineEntry;
use crate::clock::Clock;
use crate::config::{ClaimsConfig, Config};
use crate::courier::dead_drafts::DeadDrafts;
use crate::courier::file_projector::FileProjector;
use crate::courier::tunnels::TunnelRegistry;
use crate::pipeline::Pipeline;
use caller::AgentTokens;
use error::ApiError;
pub use forget::FORGET_PATH;
pub use mails::REBUILD_PATH;
pub use mcp::MCP_PATH;
pub use metrics::ApiMetrics;

mod batch;
mod body_reader;
mod boxes;
pub mod caller;
mod connection;
mod contacts;
mod drafts;
mod email;
mod email_metrics;
pub mod error;
mod events;
mod forget;
pub mod guard;
mod health;
pub mod ids;
pub mod input;
#[cfg(test)]
mod json_layout;
mod letters;
mod mails;
mod mcp;
mod messages;
mod metrics;
#[cfg(test)]
mod openapi;
mod pipeline;
pub mod server;
mod sessions;
mod submission;
pub mod token;
pub mod trace;
mod tunnels;
pub mod views;
pub mod webhooks;

/// What handlers work with. One value is shared by all requests.
pub struct Api {
    pub store: SharedStore,
    pub clock: Clock,
    pub agents: Arc<AgentTokens>,
    pub entry: PipelineEntry,
    pub metrics: ApiMetrics,
    /// The tunnels that this courier runs itself.
    pub tunnels: Arc<TunnelRegistry>,
    pub projector: Arc<FileProjector>,
    pub dead_drafts: Arc<DeadDrafts>,
    pub pipeline: Arc<Pipeline>,
    pub config: watch::Receiver<Arc<Config>>,
    /// Ends event streams when the courier stops.
    pub stop: CancellationToken,
}

/// The state of all handlers: a request copies one pointer.
pub type SharedApi = Arc<Api>;

impl Api {
    pub fn claims(&self) -> ClaimsConfig {
        self.config.borrow().claims
    }
}

/// Declares the routes once: for the router, and in tests for the OpenAPI document.
macro_rules! routes {
    ($($method:ident $path:literal => $module:ident::$handler:ident,)+) => {
        fn routes() -> Router<SharedApi> {
            Router::new()$(.route($path, axum::routing::$method($module::$handler)))+
        }

        #[cfg(test)]
        #[derive(utoipa::OpenApi)]
        #[openapi(paths($($module::$handler),+))]
        struct OpenApiPaths;

        #[cfg(test)]
        const ROUTES: &[(&str, &str)] = &[$((stringify!($method), $path)),+];
    };
}

routes! {
    post "/api/v1/dispatch" => messages::dispatch,
    post "/api/v1/post_send" => messages::post_send,
    post "/api/v1/objects" => messages::put_blob,
    get "/api/v1/objects/{id}" => messages::object,
    get "/api/v1/messages" => mails::list,
    post "/api/v1/messages/status" => mails::status,
    get "/api/v1/messages/{id}" => mails::mail,
    get "/api/v1/messages/{id}/trace" => mails::trace,
    post "/api/v1/messages/{id}/claim" => mails::claim,
    post "/api/v1/messages/{id}/renew" => mails::renew,
    post "/api/v1/messages/{id}/complete" => mails::complete,
    post "/api/v1/messages/{id}/fail" => mails::fail,
    post "/api/v1/messages/{id}/reply" => mails::reply,
    post "/api/v1/messages/{id}/retry" => mails::retry,
    post "/api/v1/messages/{id}/drop" => mails::drop_claim,
    get "/api/v1/dead" => mails::dead,
    post "/api/v1/mailbox/rebuild" => mails::rebuild,
    post "/api/v1/drafts/{id}/retry" => drafts::retry,
    post "/api/v1/drafts/{id}/drop" => drafts::drop_draft,
    post "/api/v1/letters" => submission::submit,
    get "/api/v1/letters" => letters::list,
    get "/api/v1/letters/{id}" => letters::show,
    post "/api/v1/letters/{id}/retry" => letters::retry,
    post "/api/v1/letters/{id}/trash" => letters::trash,
    post "/api/v1/letters/{id}/restore" => letters::restore,
    post "/api/v1/letters/{id}/replay" => letters::replay,
    get "/api/v1/pipeline" => pipeline::status,
    post "/api/v1/pipeline/replay" => pipeline::replay,
    get "/api/v1/email/accounts" => email::accounts,
    get "/api/v1/email/accounts/{id}" => email::account,
    post "/api/v1/email/accounts/{id}/pause" => email::pause,
    post "/api/v1/email/accounts/{id}/resume" => email::resume,
    post "/api/v1/email/accounts/{id}/scan" => email::scan,
    post "/api/v1/email/accounts/{id}/test" => email::test,
    get "/api/v1/email/tasks" => email::tasks,
    get "/api/v1/email/tasks/{id}" => email::task,
    post "/api/v1/email/tasks/{id}/retry" => email::retry,
    post "/api/v1/email/tasks/{id}/drop" => email::drop_task,
    get "/api/v1/email/directory" => email::directory,
    put "/api/v1/email/directory" => email::put_directory,
    get "/api/v1/boxes" => boxes::boxes,
    get "/api/v1/boxes/{owner}/{box}" => boxes::list,
    get "/api/v1/boxes/{owner}/{box}/peek" => boxes::peek,
    post "/api/v1/boxes/{owner}/{box}/next" => boxes::next,
    get "/api/v1/records/{record_id}" => boxes::record,
    post "/api/v1/records/{record_id}/state" => boxes::update_state,
    post "/api/v1/records/{record_id}/tags" => boxes::update_tags,
    post "/api/v1/deliveries/{record_id}/report" => boxes::report,
    get "/api/v1/contacts" => contacts::contacts,
    get "/api/v1/dids" => contacts::dids,
    get "/api/v1/contacts/{did}" => contacts::contact,
    put "/api/v1/contacts/{did}" => contacts::put_contact,
    delete "/api/v1/contacts/{did}" => contacts::remove_contact,
    put "/api/v1/contacts/{did}/bindings" => contacts::bind,
    delete "/api/v1/contacts/{did}/bindings" => contacts::unbind,
    put "/api/v1/blocks/{target}/{sender}" => contacts::block,
    delete "/api/v1/blocks/{target}/{sender}" => contacts::unblock,
    post "/api/v1/forget" => forget::forget,
    get "/api/v1/groups" => contacts::groups,
    get "/api/v1/groups/{group}" => contacts::group,
    put "/api/v1/groups/{group}" => contacts::put_group,
    put "/api/v1/groups/{group}/subscribers/{reader}" => contacts::subscribe,
    delete "/api/v1/groups/{group}/subscribers/{reader}" => contacts::unsubscribe,
    get "/api/v1/tunnels" => tunnels::tunnels,
    get "/api/v1/tunnels/{id}" => tunnels::tunnel,
    put "/api/v1/tunnels/{id}" => tunnels::put_tunnel,
    post "/api/v1/tunnels/{id}/pause" => tunnels::pause,
    post "/api/v1/tunnels/{id}/resume" => tunnels::resume,
    post "/api/v1/tunnels/{id}/test" => tunnels::test,
    get "/api/v1/groups/{group}/receipts" => sessions::receipts,
    put "/api/v1/groups/{group}/receipts" => sessions::set_receipt,
    get "/api/v1/sessions" => sessions::sessions,
    get "/api/v1/sessions/{id}" => sessions::session,
    get "/api/v1/events" => events::events,
    get "/api/v1/trace/{id}" => trace::trace,
    get "/health" => health::health,
    get "/metrics" => metrics::metrics,
}

/// Describes all routes. A test generates it from the annotations of the handlers.
const OPENAPI_JSON: &str = include_str!("../../../../docs/openapi.json");

/// All routes. Over TCP they are behind the request guard, see [`guard::protect`].
pub fn router(api: Api) -> Router {
    let api = Arc::new(api);
    let openapi = async || ([(header::CONTENT_TYPE, "application/json")], OPENAPI_JSON);
    routes()
        .route("/api/openapi.json", axum::routing::get(openapi))
        .route(mcp::MCP_PATH, mcp::methods())
        .fallback(async || ApiError::no_route())
        .method_not_allowed_fallback(async || ApiError::method_not_allowed())
        .layer(middleware::from_fn_with_state(Arc::clone(&api), observe))
        // Each handler limits its own body with `input::body`.
        .layer(DefaultBodyLimit::disable())
        .with_state(api)
}

/// Applies the time limit, counts the request, and sets the headers of every response.
async fn observe(State(api): State<SharedApi>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<axum::extract::MatchedPath>().cloned();
    let route = route.as_ref().map_or("none", axum::extract::MatchedPath::as_str);
    let limit = server::handler_timeout(route);
    let handled = tokio::time::timeout(limit, next.run(request)).await;
    let mut response = handled.unwrap_or_else(|_| ApiError::too_slow().into());
    api.metrics.count_request(route, response.status());
    // Responses are private: no cache may store them, no browser may guess their type.
    let headers = response.headers_mut();
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
