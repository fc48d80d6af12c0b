//! The HTTP API: all routes and the state that handlers share.
//!
//! Handlers translate between HTTP and the store; they contain no domain decisions. Every
//! request over TCP passes `guard` or `remote_guard`, which finds its caller; `access` checks that the caller may
//! use the route. Every error is built in [`error`].

use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::handler::Handler;
use axum::http::{HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::MethodRouter;
use monoco_core::token::Scope;
use monoco_store::SharedStore;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::center::PipelineEntry;
use crate::clock::Clock;
use crate::config::{ClaimsConfig, Config, ConfigSource};
use crate::courier::dead_drafts::DeadDrafts;
use crate::courier::file_projector::FileProjector;
use crate::courier::held_duties::HeldDuties;
use crate::courier::search_indexer::SearchIndexer;
use crate::courier::tunnels::TunnelRegistry;
use crate::pipeline::Pipeline;
use crate::remote_listener::RemoteListener;
use access::RouteAccess;
use caller::{AgentTokens, Caller};
use error::ApiError;
pub use forget::FORGET_PATH;
pub use mail_files::FILES_PATH;
pub use mails::REBUILD_PATH;
pub use mcp::MCP_PATH;
pub use metrics::ApiMetrics;

mod access;
mod activity;
pub mod approvals;
mod batch;
mod body_reader;
mod boxes;
pub mod caller;
mod compression;
mod connection;
mod contacts;
mod dead;
mod drafts;
mod email;
mod email_metrics;
pub mod error;
mod events;
mod figures;
mod forget;
pub mod guard;
pub mod halts;
mod health;
pub mod ids;
pub mod input;
#[cfg(test)]
mod json_layout;
mod letters;
mod mail_files;
mod mails;
mod mcp;
mod message_view;
pub mod messages;
mod metrics;
#[cfg(test)]
mod openapi;
pub mod page;
mod pipeline;
pub mod remote_guard;
mod search;
pub mod server;
mod sessions;
mod submission;
pub mod token;
pub mod trace;
mod tunnels;
pub mod views;
pub mod visibility;
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
    pub search: Arc<SearchIndexer>,
    pub dead_drafts: Arc<DeadDrafts>,
    pub pipeline: Arc<Pipeline>,
    pub duties: HeldDuties,
    pub config: watch::Receiver<Arc<Config>>,
    /// Where the config is read from.
    pub source: ConfigSource,
    /// The listener for other machines, if there is one.
    pub remote: Option<Arc<RemoteListener>>,
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

/// Who may use a route: `open`, `owner`, or scopes of which one is sufficient.
macro_rules! access {
    (open) => { RouteAccess::Open };
    (owner) => { RouteAccess::Owner };
    ($($scope:ident)|+) => { RouteAccess::OneOf(&[$(Scope::$scope),+]) };
}

/// The handler of a route. All have one type, so that what the router does with a handler is
/// compiled once, and not for each route.
#[derive(Clone, Copy)]
struct RouteHandler(fn(Request, SharedApi) -> HandlerFuture);

type HandlerFuture = Pin<Box<dyn Future<Output = Response> + Send>>;

impl Handler<(), SharedApi> for RouteHandler {
    type Future = HandlerFuture;

    fn call(self, request: Request, api: SharedApi) -> HandlerFuture {
        (self.0)(request, api)
    }
}

/// Declares the routes once: for the router with the access to each, and in tests for the
/// OpenAPI document.
macro_rules! routes {
    ($($method:ident $path:literal [$($access:tt)+] => $module:ident::$handler:ident,)+) => {
        fn routes() -> Router<SharedApi> {
            Router::new()$(.route(
                $path,
                restricted(
                    axum::routing::$method(RouteHandler(|request, api| {
                        Handler::call($module::$handler, request, api)
                    })),
                    access!($($access)+),
                ),
            ))+
        }

        #[cfg(test)]
        #[derive(utoipa::OpenApi)]
        #[openapi(paths($($module::$handler),+))]
        struct OpenApiPaths;

        #[cfg(test)]
        const ROUTES: &[(&str, &str, RouteAccess)] =
            &[$((stringify!($method), $path, access!($($access)+))),+];
    };
}

fn restricted(route: MethodRouter<SharedApi>, access: RouteAccess) -> MethodRouter<SharedApi> {
    route.route_layer(middleware::from_fn_with_state(access, access::enforce))
}

routes! {
    post "/api/v1/dispatch" [Send] => messages::dispatch,
    post "/api/v1/post_send" [Send] => messages::post_send,
    post "/api/v1/objects" [Reply | Send] => messages::put_blob,
    get "/api/v1/objects/{id}" [Read] => messages::object,
    get "/api/v1/messages" [Read] => mails::list,
    post "/api/v1/messages/status" [Read] => mails::status,
    get "/api/v1/messages/{id}" [Read] => mails::mail,
    get "/api/v1/messages/{id}/trace" [Read] => mails::trace,
    get "/api/v1/messages/{id}/file" [Read] => mail_files::file,
    get "/api/v1/messages/{id}/view" [owner] => message_view::view,
    post "/api/v1/messages/{id}/claim" [Claim] => mails::claim,
    post "/api/v1/messages/{id}/renew" [Claim] => mails::renew,
    post "/api/v1/messages/{id}/complete" [Claim] => mails::complete,
    post "/api/v1/messages/{id}/fail" [Claim] => mails::fail,
    post "/api/v1/messages/{id}/reply" [Reply] => mails::reply,
    post "/api/v1/messages/{id}/retry" [Operate] => mails::retry,
    post "/api/v1/messages/{id}/drop" [Operate] => mails::drop_claim,
    get "/api/v1/dead" [Operate] => dead::list,
    post "/api/v1/dead/retry" [Operate] => dead::retry,
    post "/api/v1/dead/drop" [Operate] => dead::drop_all,
    get "/api/v1/mailbox/index" [Read] => mail_files::index,
    post "/api/v1/mailbox/files" [Read] => mail_files::files,
    post "/api/v1/mailbox/rebuild" [Operate] => mails::rebuild,
    get "/api/v1/search" [Read] => search::search,
    post "/api/v1/search/rebuild" [Operate] => search::rebuild,
    post "/api/v1/drafts/{id}/retry" [Operate] => drafts::retry,
    post "/api/v1/drafts/{id}/drop" [Operate] => drafts::drop_draft,
    post "/api/v1/letters" [Send] => submission::submit,
    get "/api/v1/letters" [Operate] => letters::list,
    get "/api/v1/letters/{id}" [Operate] => letters::show,
    post "/api/v1/letters/{id}/retry" [Operate] => letters::retry,
    post "/api/v1/letters/{id}/trash" [Operate] => letters::trash,
    post "/api/v1/letters/{id}/restore" [Operate] => letters::restore,
    post "/api/v1/letters/{id}/replay" [Operate] => letters::replay,
    get "/api/v1/pipeline" [Operate] => pipeline::status,
    post "/api/v1/pipeline/replay" [Operate] => pipeline::replay,
    get "/api/v1/email/accounts" [Operate] => email::accounts,
    get "/api/v1/email/accounts/{id}" [Operate] => email::account,
    post "/api/v1/email/accounts/{id}/pause" [Operate] => email::pause,
    post "/api/v1/email/accounts/{id}/resume" [Operate] => email::resume,
    post "/api/v1/email/accounts/{id}/scan" [Operate] => email::scan,
    post "/api/v1/email/accounts/{id}/test" [Operate] => email::test,
    get "/api/v1/email/tasks" [Operate] => email::tasks,
    get "/api/v1/email/tasks/{id}" [Operate] => email::task,
    post "/api/v1/email/tasks/{id}/retry" [Operate] => email::retry,
    post "/api/v1/email/tasks/{id}/drop" [Operate] => email::drop_task,
    get "/api/v1/email/directory" [Operate] => email::directory,
    put "/api/v1/email/directory" [Operate] => email::put_directory,
    get "/api/v1/approvals" [Approve] => approvals::list,
    get "/api/v1/approvals/{id}" [Reply | Send | Approve] => approvals::show,
    post "/api/v1/approvals/{id}/approve" [Approve] => approvals::approve,
    post "/api/v1/approvals/{id}/reject" [Approve] => approvals::reject,
    post "/api/v1/approvals/{id}/edit" [Approve] => approvals::edit,
    post "/api/v1/approvals/{id}/withdraw" [Reply | Send] => approvals::withdraw,
    get "/api/v1/decisions/{id}" [Approve] => approvals::explain,
    post "/api/v1/approvals/replay" [Approve] => approvals::replay,
    get "/api/v1/halts" [Read | Operate] => halts::list,
    put "/api/v1/halts/{scope}" [Operate] => halts::halt,
    delete "/api/v1/halts/{scope}" [owner] => halts::resume,
    get "/api/v1/boxes" [Read] => boxes::boxes,
    get "/api/v1/boxes/{owner}/{box}" [Read] => boxes::list,
    get "/api/v1/boxes/{owner}/{box}/peek" [Read] => boxes::peek,
    post "/api/v1/boxes/{owner}/{box}/next" [Claim] => boxes::next,
    get "/api/v1/records/{record_id}" [Read] => boxes::record,
    post "/api/v1/records/{record_id}/state" [Claim | Operate | Approve] => boxes::update_state,
    post "/api/v1/records/{record_id}/tags" [Claim] => boxes::update_tags,
    post "/api/v1/deliveries/{record_id}/report" [Claim | Operate] => boxes::report,
    get "/api/v1/contacts" [Read] => contacts::contacts,
    get "/api/v1/dids" [Read] => contacts::dids,
    get "/api/v1/contacts/{did}" [Read] => contacts::contact,
    put "/api/v1/contacts/{did}" [Operate] => contacts::put_contact,
    delete "/api/v1/contacts/{did}" [Operate] => contacts::remove_contact,
    put "/api/v1/contacts/{did}/bindings" [Operate] => contacts::bind,
    delete "/api/v1/contacts/{did}/bindings" [Operate] => contacts::unbind,
    put "/api/v1/blocks/{target}/{sender}" [Operate] => contacts::block,
    delete "/api/v1/blocks/{target}/{sender}" [Operate] => contacts::unblock,
    post "/api/v1/forget" [owner] => forget::forget,
    get "/api/v1/groups" [Read] => contacts::groups,
    get "/api/v1/groups/{group}" [Read] => contacts::group,
    put "/api/v1/groups/{group}" [Operate] => contacts::put_group,
    put "/api/v1/groups/{group}/subscribers/{reader}" [Operate] => contacts::subscribe,
    delete "/api/v1/groups/{group}/subscribers/{reader}" [Operate] => contacts::unsubscribe,
    get "/api/v1/tunnels" [Read] => tunnels::tunnels,
    get "/api/v1/tunnels/{id}" [Read] => tunnels::tunnel,
    put "/api/v1/tunnels/{id}" [Operate] => tunnels::put_tunnel,
    post "/api/v1/tunnels/{id}/pause" [Operate] => tunnels::pause,
    post "/api/v1/tunnels/{id}/resume" [Operate] => tunnels::resume,
    post "/api/v1/tunnels/{id}/test" [Operate] => tunnels::test,
    get "/api/v1/groups/{group}/receipts" [Read] => sessions::receipts,
    put "/api/v1/groups/{group}/receipts" [Claim] => sessions::set_receipt,
    get "/api/v1/sessions" [Read] => sessions::sessions,
    get "/api/v1/sessions/{id}" [Read] => sessions::session,
    get "/api/v1/events" [Read] => events::events,
    get "/api/v1/trace/{id}" [Read] => trace::trace,
    get "/api/v1/caller" [Read | Claim | Reply | Send | Operate | Approve] => token::caller,
    get "/api/v1/tokens" [owner] => token::tokens,
    get "/api/v1/tokens/{name}/activity" [owner] => activity::list,
    post "/api/v1/tokens/{name}/revoke" [owner] => token::revoke,
    get "/api/v1/figures" [Read | Operate] => figures::list,
    get "/health" [open] => health::health,
    get "/metrics" [Read | Operate] => metrics::metrics,
}

/// Describes all routes. A test generates it from the annotations of the handlers.
const OPENAPI_JSON: &str = include_str!("../../../../docs/openapi.json");

/// All routes. Over TCP they are behind the request guard, see [`guard::protect`].
pub fn router(api: Api) -> Router {
    let api = Arc::new(api);
    let openapi = async || ([(header::CONTENT_TYPE, "application/json")], OPENAPI_JSON);
    routes()
        .route("/api/openapi.json", axum::routing::get(openapi))
        // Every token may use it; the tools check their scopes.
        .route(mcp::MCP_PATH, mcp::methods())
        .fallback(async || ApiError::no_route())
        .method_not_allowed_fallback(async || ApiError::method_not_allowed())
        .layer(middleware::from_fn_with_state(Arc::clone(&api), observe))
        // Each handler limits its own body with `input::body`.
        .layer(DefaultBodyLimit::disable())
        .with_state(api)
}

/// Routes that only read, and are asked with a body.
const READS_WITH_BODY: [&str; 2] = [mails::STATUS_PATH, FILES_PATH];

/// Rejects the writes of an agent that is halted and locked.
pub async fn check_lock(api: &Api, writer: Option<&Caller>) -> Result<(), ApiError> {
    let Some(agent) = writer.and_then(Caller::agent) else { return Ok(()) };
    match api.store.halts().await?.lock_of(agent.name.as_str()) {
        Some(halt) => Err(ApiError::locked(halt)),
        None => Ok(()),
    }
}

/// Applies the time limit, counts the request, and sets the headers of every response.
async fn observe(State(api): State<SharedApi>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<axum::extract::MatchedPath>().cloned();
    let route = route.as_ref().map_or("none", axum::extract::MatchedPath::as_str);
    let limit = server::handler_timeout(route);
    let caller = request.extensions().get::<Caller>().cloned();
    // Each tool of MCP says by itself whether it writes.
    let can_write = !request.method().is_safe() && route != MCP_PATH;
    let writer = caller.filter(|_| can_write && !READS_WITH_BODY.contains(&route));
    let handled = async {
        match check_lock(&api, writer.as_ref()).await {
            Ok(()) => next.run(request).await,
            Err(locked) => locked.into(),
        }
    };
    let handled = tokio::time::timeout(limit, handled).await;
    let mut response = handled.unwrap_or_else(|_| ApiError::too_slow().into());
    api.metrics.count_request(route, response.status());
    // Responses are private: no cache may store them, no browser may guess their type.
    let headers = response.headers_mut();
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
