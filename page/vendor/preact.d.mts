// Types of the vendored module, as far as the page uses it.
export const h: (...args: unknown[]) => unknown;
export const render: (element: unknown, place: Element) => void;
export const Fragment: unknown;
