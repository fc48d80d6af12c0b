// Preact, its hooks and htm: the only module that names the vendored files.

import { h, render, Fragment } from './vendor/preact.mjs';
import htm from './vendor/htm.mjs';

export { render, Fragment };
export { useState, useEffect, useMemo, useRef, useCallback, useLayoutEffect } from './vendor/hooks.mjs';

/** Builds elements from a template. Values become text nodes and attributes, never markup. */
export const html = htm.bind(h);
