// Types of the vendored module, as far as the page uses it.
type Update<T> = (next: T | ((before: T) => T)) => void;
export function useState<T>(first: T | (() => T)): [T, Update<T>];
export function useEffect(effect: () => void | (() => void), inputs?: unknown[]): void;
export function useLayoutEffect(effect: () => void | (() => void), inputs?: unknown[]): void;
export function useMemo<T>(make: () => T, inputs: unknown[]): T;
export function useCallback<T>(callback: T, inputs: unknown[]): T;
export function useRef<T>(first: T): { current: T };
