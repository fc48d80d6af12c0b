// Agents: tokens with their scopes and last call; revoke.

import { html, useState } from '../html.js';
import { apiPath, get, post } from '../api.js';
import { t } from '../language.js';
import { act, Confirm, Empty, Failure, Foreign, Loading, Time, useLoad } from '../ui.js';

/** @param {{route: import('../route.js').Route}} _props */
export default function Agents(_props) {
  const { value, error, reload } = useLoad(() => get(apiPath(['tokens'])), []);
  const [asked, setAsked] = useState('');
  if (error && !value) return html`<${Failure} error=${error} retry=${reload} />`;
  if (!value) return html`<${Loading} />`;
  return html`<section class="view"><h1>${t('view_agents')}</h1>
    ${value.tokens.length === 0
      ? html`<${Empty} title=${t('no_agents')} command="monoco token add NAME --scope read,claim,reply">${t('no_agents_hint')}<//>`
      : html`<div class="scroll" tabindex="0" role="region" aria-label=${t('view_agents')}><table><thead><tr><th scope="col">${t('name')}</th><th scope="col">${t('scopes')}</th><th scope="col">${t('workspace')}</th><th scope="col">${t('last_used')}</th><th scope="col">${t('created')}</th><th scope="col">${t('actions')}</th></tr></thead>
        <tbody>${value.tokens.slice(0, 200).map((/** @type {any} */ token) => html`<tr key=${token.name}>
          <th scope="row"><${Foreign}>${token.name}<//> <span class="quiet">${token.did}</span></th><td>${token.scopes.join(', ')}</td><td>${token.workspace}</td>
          <td>${token.last_used_at ? html`<${Time} at=${token.last_used_at} />` : t('never')}</td><td><${Time} at=${token.created_at} /></td>
          <td>${token.revoked_at ? html`<span>${t('revoked')} <${Time} at=${token.revoked_at} /></span>` : html`<button onClick=${() => setAsked(token.name)} aria-label=${`${t('revoke')} ${token.name}`}>${t('revoke')}</button>`}</td></tr>`)}</tbody></table></div>`}
    ${asked && html`<${Confirm} title=${`${t('revoke')} ${asked}`} confirm=${t('revoke')} onClose=${() => setAsked('')}
      onConfirm=${() => act(() => post(apiPath(['tokens', asked, 'revoke'])), t('revoked')).then(reload)}><p>${t('revoke_hint')}</p><//>`}
  </section>`;
}
