// Lines for a config file that make a rule of what is shown. The page writes no config: a rule is
// made by the user, in a file that can be reviewed.

import { html, useEffect, useRef, useState } from './html.js';
import { t } from './language.js';
import { Choice, notify } from './ui.js';

/**
 * A text of a stranger as a quoted YAML string, on one line and in ASCII where it must be.
 * @param {string} text
 */
export const yamlText = (text) => JSON.stringify(text).replace(/[\u007f-\u00a0\u200b-\u200f\u2028-\u202f\u2066-\u2069\ufeff]/g,
  (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`);

/** @typedef {{label: string, lines: string[]}} Rule */

/**
 * Filters that let a workspace pull Mails like this one.
 * @param {import('#api').Mail} mail
 * @returns {Rule[]}
 */
export function mailRules(mail) {
  const authors = mail.participants.from.slice(0, 3).map((person) => person.id);
  const domains = [...new Set(authors.filter((id) => /^[^@\s]+@[^@\s]+$/.test(id)).map((id) => id.split('@')[1]))];
  /** @param {string} label @param {string} filter */
  const rule = (label, filter) => ({ label, lines: ['mailbox:', '  filters:', `    - { ${filter} }`] });
  return [
    ...authors.map((id) => rule(t('rule_from', { name: id.slice(0, 40) }), `type: from, value: ${yamlText(id)}`)),
    ...domains.map((domain) => rule(t('rule_domain', { name: domain.slice(0, 40) }), `type: from_domain, domain: ${yamlText(domain)}`)),
    rule(t('rule_chat'), `type: session, value: ${yamlText(mail.session.id)}`),
    rule(t('rule_tunnel', { name: mail.tunnel }), `type: tunnel, value: ${yamlText(mail.tunnel)}`),
  ];
}

/**
 * Rules that would send messages like this one without asking, or refuse them.
 * @param {import('#api').ApprovalView} approval
 * @returns {Rule[]}
 */
export function approvalRules(approval) {
  const agent = approval.agent ? `agent: ${yamlText(approval.agent)}, ` : '';
  const targets = approval.to.slice(0, 20).map(yamlText).join(', ');
  /** @param {string} label @param {string} rule */
  const rule = (label, rule) => ({ label, lines: ['courier:', '  approvals:', '    rules:', `      - { ${rule} }`] });
  return [
    rule(t('rule_send_to'), `${agent}to: [${targets}], do: send`),
    rule(t('rule_send_some'), `${agent}to: [${targets}], do: send, at_most: 20/h`),
    ...(agent ? [rule(t('rule_refuse'), `${agent}do: refuse`)] : []),
  ];
}

/**
 * Shows the lines of one of the rules, where they belong, and what to run then.
 * @param {{rules: Rule[], where: string, command: string, onClose: () => void}} props
 */
export function RuleDialog({ rules, where, command, onClose }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const [chosen, setChosen] = useState('0');
  useEffect(() => dialog.current?.showModal(), []);
  const text = rules[Number(chosen)].lines.join('\n');
  // Without a permission for the clipboard, the lines can still be selected.
  const copy = () => navigator.clipboard.writeText(`${text}\n`).then(() => notify(t('copied')), () => notify(t('not_copied')));
  return html`<dialog ref=${dialog} class="rule" onClose=${onClose} aria-labelledby="rule-title">
    <h2 id="rule-title">${t('make_rule')}</h2>
    <${Choice} label=${t('make_rule')} value=${chosen} options=${rules.map(({ label }, index) => [String(index), label])} onChange=${setChosen} />
    <p>${where}</p>
    <pre class="command" tabindex="0"><code>${text}</code></pre>
    <p>${t('rule_then')}</p>
    <pre class="command" tabindex="0"><code>${command}</code></pre>
    <form method="dialog" class="actions"><button type="button" onClick=${copy}>${t('copy')}</button><button class="primary">${t('close')}</button></form>
  </dialog>`;
}
