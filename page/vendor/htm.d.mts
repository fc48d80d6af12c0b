// Types of the vendored module, as far as the page uses it.
declare const htm: { bind(h: unknown): (strings: TemplateStringsArray, ...values: any[]) => any };
export default htm;
