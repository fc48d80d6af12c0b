// Claims that the page makes, and how it ends them.

import { apiPath, post } from './api.js';

/** The agent that holds the claims of the page: all tabs act for the owner. */
export const AGENT = 'web-page';

/** @param {string} id @param {string} workspace @returns {Promise<any>} */
export const claimMail = (id, workspace) => post(apiPath(['messages', id, 'claim']), { agent_id: AGENT, workspace });

/** @param {any} mail @param {string} workspace */
const claimOf = (mail, workspace) => mail.claim ?? mail.claims?.find((/** @type {any} */ claim) => claim.workspace === workspace);

/**
 * Completes a Mail. A Mail that is not claimed is claimed first.
 * @param {any} mail
 * @param {string} workspace
 */
export async function finishMail(mail, workspace) {
  const claim = claimOf(mail, workspace);
  const isOurs = claim?.status === 'CLAIMED' && claim.agent_id === AGENT;
  const { epoch } = isOurs ? claim : await claimMail(mail.id, workspace);
  await post(apiPath(['messages', mail.id, 'complete']), { agent_id: AGENT, workspace, epoch });
}

/** @param {any} claim @returns {Promise<any>} */
export const renewClaim = ({ id, workspace, epoch }) => post(apiPath(['messages', id, 'renew']), { agent_id: AGENT, workspace, epoch });

/** @param {any} claim @param {string} reason @param {boolean} retryable @returns {Promise<any>} */
export const failClaim = ({ id, workspace, epoch }, reason, retryable) =>
  post(apiPath(['messages', id, 'fail']), { agent_id: AGENT, workspace, epoch, reason, retryable });

/** A new idempotency key: a reply that is sent twice by mistake is stored once. */
export const newKey = () => `page-${crypto.randomUUID()}`;
