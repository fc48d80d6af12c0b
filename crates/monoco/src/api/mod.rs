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
use utoipa::OpenApi;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::center::PipelineEntry;
use crate::clock::Clock;
use crate::config::{ClaimsConfig, Config};
use crate::courier::dead_drafts::DeadDrafts;
use crate::courier::file_projector::FileProjector;
use crate::courier::tunnels::TunnelRegistry;
use crate::pipeline::Pipeline;
use error::ApiError;
pub use mails::REBUILD_PATH;
pub use metrics::ApiMetrics;

mod batch;
mod boxes;
mod connection;
mod contacts;
mod drafts;
pub mod error;
mod events;
pub mod guard;
mod health;
mod ids;
mod input;
mod letters;
mod mails;
mod messages;
mod metrics;
mod pipeline;
pub mod server;
mod sessions;
mod submission;
pub mod token;
mod trace;
pub mod views;
pub mod webhooks;

/// What handlers work with. One value is shared by all requests.
pub struct Api {
    pub store: SharedStore,
    pub clock: Clock,
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
    fn claims(&self) -> ClaimsConfig {
        self.config.borrow().claims
    }
}

#[derive(OpenApi)]
#[openapi(
    info(title = "Monoco", description = "Message hub for people and AI agents"),
    modifiers(&TokenSecurity),
    security(("token" = []))
)]
struct OpenApiDoc;

struct TokenSecurity;

impl utoipa::Modify for TokenSecurity {
    fn modify(&self, doc: &mut utoipa::openapi::OpenApi) {
        let components = doc.components.get_or_insert_default();
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        components.add_security_scheme("token", scheme);
    }
}

/// All routes. Over TCP they are behind the request guard, see [`guard::protect`].
pub fn router(api: Api) -> Router {
    let api = Arc::new(api);
    let (router, doc) = OpenApiRouter::with_openapi(OpenApiDoc::openapi())
        .routes(routes!(messages::dispatch))
        .routes(routes!(messages::post_send))
        .routes(routes!(messages::put_blob))
        .routes(routes!(messages::object))
        .routes(routes!(mails::list))
        .routes(routes!(mails::status))
        .routes(routes!(mails::mail))
        .routes(routes!(mails::trace))
        .routes(routes!(mails::claim))
        .routes(routes!(mails::renew))
        .routes(routes!(mails::complete))
        .routes(routes!(mails::fail))
        .routes(routes!(mails::reply))
        .routes(routes!(mails::retry))
        .routes(routes!(mails::drop_claim))
        .routes(routes!(mails::dead))
        .routes(routes!(mails::rebuild))
        .routes(routes!(drafts::retry))
        .routes(routes!(drafts::drop_draft))
        .routes(routes!(submission::submit, letters::list))
        .routes(routes!(letters::show))
        .routes(routes!(letters::retry))
        .routes(routes!(letters::trash))
        .routes(routes!(letters::restore))
        .routes(routes!(letters::replay))
        .routes(routes!(pipeline::status))
        .routes(routes!(pipeline::replay))
        .routes(routes!(boxes::boxes))
        .routes(routes!(boxes::list))
        .routes(routes!(boxes::peek))
        .routes(routes!(boxes::next))
        .routes(routes!(boxes::record))
        .routes(routes!(boxes::update_state))
        .routes(routes!(boxes::update_tags))
        .routes(routes!(boxes::report))
        .routes(routes!(contacts::contacts))
        .routes(routes!(contacts::contact, contacts::put_contact, contacts::remove_contact))
        .routes(routes!(contacts::dids))
        .routes(routes!(contacts::bind, contacts::unbind))
        .routes(routes!(contacts::block, contacts::unblock))
        .routes(routes!(contacts::groups))
        .routes(routes!(contacts::group, contacts::put_group))
        .routes(routes!(contacts::subscribe, contacts::unsubscribe))
        .routes(routes!(contacts::tunnels))
        .routes(routes!(contacts::put_tunnel))
        .routes(routes!(sessions::receipts, sessions::set_receipt))
        .routes(routes!(sessions::sessions))
        .routes(routes!(sessions::session))
        .routes(routes!(events::events))
        .routes(routes!(trace::trace))
        .routes(routes!(health::health))
        .routes(routes!(metrics::metrics))
        .split_for_parts();
    let doc = doc.to_pretty_json().unwrap_or_default();
    let openapi = move || async move { ([(header::CONTENT_TYPE, "application/json")], doc) };
    router
        .route("/api/openapi.json", axum::routing::get(openapi))
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
    let rebuild = route == mails::REBUILD_PATH;
    let limit = if rebuild { server::REBUILD_TIMEOUT } else { server::HANDLER_TIMEOUT };
    let handled = tokio::time::timeout(limit, next.run(request)).await;
    let mut response = handled.unwrap_or_else(|_| ApiError::too_slow().into());
    api.metrics.count_request(route, response.status());
    // Responses are private: no cache may store them, no browser may guess their type.
    let headers = response.headers_mut();
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
