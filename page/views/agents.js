// Agents: tokens with their scopes and last call; what each agent has done; revoke.

import { html, useState } from '../html.js';
import { apiPath, get, post } from '../api.js';
import { t, wireText } from '../language.js';
import { go, link } from '../route.js';
import { useEvents } from '../stream.js';
import { useKeys } from '../keys.js';
import { act, Confirm, Did, Empty, Foreign, Id, Pending, State, Time, useLoad } from '../ui.js';

/** Entries of the timeline of an agent. */
const MAX_ACTIVITIES = 150;

/** Events after which the timeline of an agent may have changed. */
const CHANGES = new Set(['read', 'posted', 'approval', 'letter', 'verdict']);

/** @param {{route: import('../route.js').Route}} props */
export default function Agents({ route }) {
  return route.id ? html`<${Timeline} name=${route.id} />` : html`<${Tokens} />`;
}

function Tokens() {
  const { value, error, reload } = useLoad(/** @returns {Promise<import('#api').TokenList>} */ () => get(apiPath(['tokens'])), []);
  const [asked, setAsked] = useState('');
  if (!value) return html`<${Pending} title=${t('view_agents')} error=${error} retry=${reload} />`;
  return html`<section class="view"><h1>${t('view_agents')}</h1>
    ${value.tokens.length === 0
      ? html`<${Empty} title=${t('no_agents')} command="monoco token add NAME --scope read,claim,reply">${t('no_agents_hint')}<//>`
      : html`<div class="scroll" tabindex="0" role="region" aria-label=${t('view_agents')}><table><thead><tr><th scope="col">${t('name')}</th><th scope="col">${t('scopes')}</th><th scope="col">${t('workspace')}</th><th scope="col">${t('last_used')}</th><th scope="col">${t('created')}</th><th scope="col">${t('actions')}</th></tr></thead>
        <tbody>${value.tokens.slice(0, 200).map((token) => html`<tr key=${token.name}>
          <th scope="row"><a href=${link('agents', token.name)}><${Foreign}>${token.name}<//></a> <span class="quiet">${token.did}</span></th><td>${token.scopes.join(', ')}</td><td>${token.workspace}</td>
          <td>${token.last_used_at ? html`<${Time} at=${token.last_used_at} />` : t('never')}</td><td><${Time} at=${token.created_at} /></td>
          <td>${token.revoked_at ? html`<span>${t('revoked')} <${Time} at=${token.revoked_at} /></span>` : html`<button onClick=${() => setAsked(token.name)} aria-label=${`${t('revoke')} ${token.name}`}>${t('revoke')}</button>`}</td></tr>`)}</tbody></table></div>`}
    ${asked && html`<${Confirm} title=${`${t('revoke')} ${asked}`} confirm=${t('revoke')} onClose=${() => setAsked('')}
      onConfirm=${() => act(() => post(apiPath(['tokens', asked, 'revoke'])), t('revoked')).then(reload)}><p>${t('revoke_hint')}</p><//>`}
  </section>`;
}

/** One Mail that the agent has read, or one message that it has posted. @param {{of: import('#api').AgentActivity}} props */
function Activity({ of: { at, kind, mail_id: mail, msg_id: message, trust, with: others, rule, approval } }) {
  return html`<li class=${approval?.state === 'REJECTED' ? 'bad' : ''}>
    <p><span class="title">${wireText('activity', kind)}</span> ${others.slice(0, 5).map((did) => html`<${Did} key=${did} did=${did} /> `)}
      ${trust === 'untrusted' && html`<span class="badge trust" title=${t('untrusted_hint')}>${t('untrusted')}</span>`} <${Time} at=${at} /></p>
    <p class="quiet">${mail && html`<a href=${link('mail', mail)}><${Id} id=${mail} length=${40} /></a>`}
      ${message && html`<a href=${link('trace', message)}><${Id} id=${message} /></a> `}${rule && html`<${Foreign}>${t('by_rule', { rule })}<//>`}</p>
    ${approval && html`<p><a href=${link('approvals', approval.id)}>${approval.id}</a> <${State} of=${approval.state} />
      ${approval.answered_by && html` <${Foreign}>${t('answered_by', { name: approval.answered_by })}<//>`} <${Time} at=${approval.answered_at} />
      ${approval.reason && html` <${Foreign} class="quiet">${approval.reason}<//>`}</p>`}
  </li>`;
}

/** What an agent has done in the last 7 days. @param {{name: string}} props */
function Timeline({ name }) {
  const { value, error, reload } = useLoad(/** @returns {Promise<import('#api').AgentActivityList>} */ () => get(apiPath(['tokens', name, 'activity'], { limit: MAX_ACTIVITIES })), [name]);
  useEvents((events) => events.some((event) => CHANGES.has(event.kind)) && reload());
  const back = () => go(link('agents'));
  useKeys({ Escape: back });
  if (!value) return html`<${Pending} title=${name} error=${error} retry=${reload} />`;
  return html`<section class="view">
    <p class="back"><button class="plain" onClick=${back}>← ${t('back')} <kbd>Esc</kbd></button></p>
    <h1><${Foreign}>${name}<//></h1>
    <p class="quiet">${t('activity_hint')}</p>
    ${value.activities.length === 0
      ? html`<${Empty} title=${t('no_activity')}>${t('no_activity_hint')}<//>`
      : html`<ol class="timeline">${value.activities.map((activity, index) => html`<${Activity} key=${index} of=${activity} />`)}</ol>`}
    ${value.truncated && html`<p class="quiet">${t('activity_cut', { n: MAX_ACTIVITIES })}</p>`}
  </section>`;
}
