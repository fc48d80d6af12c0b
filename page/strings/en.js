// All texts of the page in English. `zh.js` has the same keys.

export const en = {
  // Frame
  views: 'Views', view_inbox: 'Inbox', view_mail: 'Mail', view_search: 'Search', view_conversations: 'Conversations', view_approvals: 'Approvals',
  view_dead: 'Dead letters', view_pipeline: 'Pipeline', view_trace: 'Trace', view_health: 'Health', view_agents: 'Agents',
  skip: 'Skip to content', connecting: 'Connecting …', live: 'Live', not_live: 'Reconnecting …', theme_light: 'Light theme', theme_dark: 'Dark theme',
  keys: 'Keys', close: 'Close', cancel: 'Cancel', back: 'Back', loading: 'Loading …', try_again: 'Try again',
  logged_out: 'This browser is not logged in, or its login has ended. Run this on the machine of the courier:',
  logged_out_hint: 'Over SSH, `monoco open --print` prints the link instead of opening it. A link works once, for 60 s.',
  error_unreachable: 'The courier does not answer. The page tries again when the connection is back; `monoco courier status` shows its state.',
  error_answer: 'The courier sent an answer that the page cannot read. Reload the page: the courier may have been updated.',
  key_move: 'next, previous row', key_open: 'open the row', key_back: 'back to the row', key_claim: 'claim', key_done: 'done',
  key_reply: 'reply', key_select: 'select the row', key_approve: 'approve', key_new: 'show new rows', key_search: 'search', key_help: 'this help',

  // Lists
  all: 'All', show_all: 'Show all', older: 'Older →', newest: '← Newest', pages: 'Pages', apply: 'Search', show: 'Show',
  search: 'Search', nothing_found: 'Nothing found', new_rows: '{n} new', selected: '{n} selected', select_mail: 'Select the Mail of {name}',
  show_more: 'Show more ({n} characters left)', range: '{first} to {last} of {all}', earlier: '← Earlier', later: 'Later →',
  and_more: 'And {n} more.', actions: 'Actions', status: 'Status', filter_status: 'Status',

  // Inbox
  requests: 'Requests', unrouted: 'Unrouted', unrouted_hint: 'No workspace has claimed or pulled these Mails. Open one to make a rule from it.',
  no_unrouted: 'Every Mail has a workspace', no_unrouted_hint: 'Mails that no workspace has claimed or pulled appear here.', provider: 'Provider', all_providers: 'All providers', workspace: 'Workspace', workspace_shared: 'shared workspace',
  untrusted: 'untrusted', untrusted_hint: 'The sender is not verified. Do not follow instructions in this text.', known: 'known sender',
  save_view: 'Save this view', view_saved: 'View saved: {name}', forget_view: 'Remove the view {name}',
  inbox_empty: 'No Mails yet', inbox_empty_hint: 'Messages appear here as soon as a tunnel receives one. To try it without an account, start the simulated networks:',
  no_tunnel: 'No tunnel yet', no_tunnel_hint: 'A tunnel connects the courier with one network. Add one:',
  no_requests: 'No requests', no_requests_hint: 'Messages of unknown senders wait here when the tunnel has `strangers: hold`.',
  mark_read: 'Mark as read', marked_read: 'Marked as read',

  // Search
  search_hint: 'Words, "phrases", begin*, from:, in:, tunnel:', search_empty: 'Search in all messages', search_empty_hint: 'Received and sent messages that have all the words and meet all filters. For example:',
  search_by_since: 'Time', search_any_since: 'Any time', search_since: 'Last {time}', search_by_has: 'Content', search_any_has: 'Any content',
  search_has_attachment: 'With an attachment', search_has_image: 'With an image', search_has_link: 'With a link',
  search_by_status: 'Status', search_any_status: 'Any status', search_by_order: 'Order', search_any_order: 'Newest first', search_order_oldest: 'Oldest first', search_order_relevance: 'Best first',
  search_nothing: 'No message has all these words. A word finds only whole words; `depl*` finds words that start with it.', search_continue: 'Nothing among the messages that were examined. Older ones follow on the next page.',
  search_incomplete: 'The search index is being built; some messages are not found yet.',

  // Mail
  claim: 'Claim', claimed: 'Claimed', done: 'Done', completed: 'Done', fail: 'Return', failed: 'Returned; it can be claimed again',
  failed_on_page: 'returned on the web page', explain: 'Explain', renew: 'Renew', renewed: 'Claim renewed', claims: 'Claims',
  lease_left: '{time} left', lease_over: 'expired', next_retry: 'can be claimed again', format: 'Format', as_text: 'Text', as_formatted: 'Formatted',
  reply: 'Reply', reply_to: 'Reply to', replies: 'Replies', reply_queued: 'Reply queued', send: 'Send', send_key: 'Ctrl + Enter',
  no_reply_target: 'This Mail has no address to answer to.', attachments: 'Attachments', details: 'Details', id: 'Id', message: 'Message', file: 'File',
  deliveries: 'Deliveries', no_mail: 'No such Mail', no_mail_hint: 'It may have been purged by retention. The trace shows what is left of it.',

  // Rules
  make_rule: 'Make a rule', rule_from: 'From {name}', rule_domain: 'Domain {name}', rule_chat: 'This chat', rule_tunnel: 'Tunnel {name}', rule_then: 'Then run:', copy: 'Copy', copied: 'Copied',
  not_copied: 'The browser does not allow it; select the lines instead', rule_where_mail: 'Add these lines to .monoco/mailbox/config.yaml of the workspace that is to have such Mails:',
  rule_where_approval: 'Add these lines to the config of the courier, before rules that hold such messages. The replay shows what would change:',
  rule_send_to: 'Send to these', rule_send_some: 'Send to these, 20 per hour', rule_refuse: 'Refuse this agent',

  // Conversations
  owner: 'Owner', no_conversations: 'No conversations yet', no_conversations_hint: 'A conversation appears with its first message. To try it, start the simulated networks:',
  erased: 'The text was erased.',

  // Approvals
  no_approvals: 'Nothing waits for approval', no_approvals_hint: 'Messages of agents wait here when a rule in `approvals` holds them.',
  approve: 'Approve', approved: 'Approved; the message is queued', reject: 'Reject', rejected: 'Rejected; nothing is sent', edit: 'Edit', edited: 'Sent as edited',
  held_because: 'Held by rule {rule}: {why}', to: 'To', author: 'Author', expires: 'Expires', answered_by: 'Answered by {name}',
  after_untrusted: 'The agent had read a Mail of an unverified sender in the 24 h before.', reason: 'Reason', send_edited: 'Send edited text', before: 'Before', after: 'After',
  already_answered: 'Already answered by {name}: {state}',

  // Dead letters
  kind: 'Kind', kind_claim: 'Claim', kind_delivery: 'Delivery', kind_letter: 'Letter', kind_draft: 'Draft', kind_task: 'E-mail task',
  retry: 'Retry', drop: 'Drop', retried: '{n} retried', dropped: '{n} dropped', retry_all: 'Retry {n}', drop_all: 'Drop {n}', attempts: 'Attempts: {n}',
  no_dead: 'No dead letters', no_dead_hint: 'What fails for good appears here, grouped by cause.', no_cause: 'No cause given',
  uncertain_hint: 'These messages may have arrived. A retry can deliver them a second time; check with the recipient first.',
  retry_matching: 'Retry all of these', drop_matching: 'Drop all of these', all_tunnels: 'All tunnels', dead_count: 'The courier counts {n} dead letters that match:',
  dead_failed: '{n} changed, {failed} could not be changed: {why}',
  evidence: 'Known:', first_try: 'first attempt', more_causes: '{n} more causes; choose a kind to see them.',

  // Pipeline
  inbound: 'Inbound', outbound: 'Outbound', letters: 'Letters', no_letters: 'No letters in this state', no_letters_hint: 'Letters that pass the chains appear here.',
  no_letters_yet: 'no letters yet', waiting_count: '{n} waiting', each: 'each', restore: 'Restore', to_trash: 'Trash', letter_changed: 'Letter changed',
  replay: 'Replay', replay_dry_run: 'Compare the last 7 days', replay_hint: 'Runs stored letters through the current chains and shows whose outcome would differ. Nothing is changed.',
  replay_result: '{n} letters evaluated, {differ} would end differently.', replay_partial: 'Only the first letters were evaluated.',
  verdict_pass: 'passed', verdict_skip: 'skipped', verdict_trash: 'trashed', verdict_errors: 'errors',

  // Trace
  any_id: 'Id of a message, Mail, letter, record or delivery, or an id of the provider', trace_empty: 'The history of one item',
  trace_empty_hint: 'Enter any id. A unique prefix is sufficient.', trace_not_found: 'No item has this id, or several have this prefix.',
  open_mail: 'Open the Mail', timeline: 'Timeline', trace_cut: '{n} more steps; `monoco trace` shows all of them.',

  // Health
  tunnels: 'Tunnels', tunnel: 'Tunnel', last_message: 'Last message', last_error: 'Last error', test: 'Test', test_ok: '{name} works',
  pause: 'Pause', paused: 'Paused', resume: 'Resume', resumed: 'Resumed', courier: 'Courier', version: 'Version', storage: 'Storage',
  tile_received: 'received', tile_sent: 'sent', tile_pending: 'wait to be sent', tile_oldest_mail: 'oldest unclaimed Mail', tile_oldest_delivery: 'oldest waiting delivery',
  clock_drift: 'The clock of the machine differs from the clock of the courier by {time}.',
  figures: 'Figures', span: 'Span', per_minute: 'Per minute', per_tunnel: 'Received and sent per tunnel', per_worker: 'Letters per worker', as_table: 'As a table', minute: 'Minute',
  waiting_per_tunnel: 'Oldest waiting delivery per tunnel, in seconds', waiting_per_worker: 'Oldest waiting letter per worker, in seconds',
  couriers: 'Couriers', duties: 'Duties', last_seen: 'Last seen', starts: 'Starts', this_courier: 'answers this page', courier_live: 'running', courier_gone: 'not seen', duties_vacant: 'No courier holds: {names}',
  halt: 'Halt all deliveries', halted: 'Deliveries are halted', halt_hint: 'No attempt starts until you resume. Attempts in progress cannot be recalled.',
  halt_done: 'Halted; {n} attempts in progress cannot be recalled', halt_resumed: 'Resumed; {n} deliveries wait',

  // Agents
  no_agents: 'No agents yet', no_agents_hint: 'An agent gets a token of its own, with scopes:', scopes: 'Scopes', last_used: 'Last call', never: 'never',
  revoke: 'Revoke', revoked: 'Revoked', revoke_hint: 'The token is rejected at once, and its open streams end.', created: 'Created', name: 'Name',
  activity_hint: 'Mails that the agent has read, and messages that it has posted, in the last 7 days.', no_activity: 'No activity', no_activity_hint: 'The agent has read no Mail and posted no message in the last 7 days.',
  activity_read: 'Read a Mail of', activity_send: 'Sent to', activity_hold: 'Held for approval, to', activity_cut: 'The newest {n} are shown.', by_rule: 'rule: {rule}',

  // States, as on the wire
  state_NEW: 'New', state_CLAIMED: 'Claimed', state_COMPLETED: 'Done', state_DEADLETTER: 'Dead letter', state_UNREAD: 'Unread', state_READING: 'Reading', state_READED: 'Read',
  state_WAIT: 'Waiting', state_SENDING: 'Sending', state_SENT: 'Sent', state_FAILED: 'Failed, retried', state_DEAD: 'Dead', state_UNCERTAIN: 'Uncertain', state_HELD: 'Held',
  state_ARCHIVED: 'Archived', state_WAITING: 'Waiting', state_AWAY: 'At a worker', state_DONE: 'Done', state_MERGED: 'Merged', state_TRASHED: 'Trash',
  state_PENDING: 'Pending', state_APPROVED: 'Approved', state_REPLACED: 'Edited', state_REJECTED: 'Rejected', state_WITHDRAWN: 'Withdrawn', state_EXPIRED: 'Expired',
  state_hearing: 'hearing', state_quiet: 'quiet', state_deaf: 'deaf', state_down: 'down', state_paused: 'paused', state_ok: 'ok', state_degraded: 'degraded', state_failed: 'failed',

  // Events, as on the wire
  event_received: 'Received', event_merged: 'Merged into a Mail', event_claimed: 'Claimed', event_renewed: 'Renewed', event_read: 'Read', event_completed: 'Done', event_moved: 'File moved',
  event_expired: 'Expired', event_dispatched: 'Dispatched', event_posted: 'Accepted for sending', event_sending: 'Attempt', event_sent: 'Sent', event_failed: 'Failed',
  event_uncertain: 'Uncertain', event_dead: 'Dead letter', event_verdict: 'Verdict', event_letter: 'Letter accepted', event_marked: 'State changed', event_duplicate: 'Duplicate', event_blocked: 'Blocked',
  event_dropped: 'Dropped', event_taken: 'Leased', event_lease_ended: 'Lease expired', event_edited: 'Edited', event_recalled: 'Recalled', event_erased: 'Erased', event_postponed: 'Postponed', event_approval: 'Approval', event_halted: 'Halt',
};
