// Types of the vendored module, as far as the page uses it.
declare const UPlot: new (options: object, data: unknown[], place: Element) => { destroy(): void };
export default UPlot;
