// Writes the schemas of docs/openapi.json as TypeScript types, for the type check of the page.
//
// node api_types.mjs OPENAPI_JSON OUTPUT

import fs from 'node:fs';

const [input, output] = process.argv.slice(2);
const { schemas } = JSON.parse(fs.readFileSync(input, 'utf8')).components;

/** The TypeScript type of a JSON schema. */
function typeOf(schema) {
  if (schema.$ref) return schema.$ref.split('/').pop();
  const parts = schema.oneOf ?? schema.anyOf;
  if (parts) return parts.map(typeOf).join(' | ');
  if (schema.allOf) return schema.allOf.map((part) => `(${typeOf(part)})`).join(' & ');
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(' | ');
  const types = [schema.type ?? 'any'].flat();
  return types.map((type) => ({
    string: 'string', integer: 'number', number: 'number', boolean: 'boolean', null: 'null', any: 'any',
    array: schema.items ? `(${typeOf(schema.items)})[]` : 'any[]', object: objectType(schema),
  })[type]).join(' | ');
}

function objectType({ properties, required = [], additionalProperties }) {
  const more = typeof additionalProperties === 'object' ? typeOf(additionalProperties) : 'any';
  if (!properties) return `{ [name: string]: ${more} }`;
  const fields = Object.entries(properties).map(([name, schema]) =>
    `${JSON.stringify(name)}${required.includes(name) ? '' : '?'}: ${typeOf(schema)}`);
  return `{ ${fields.join('; ')} }`;
}

const lines = Object.entries(schemas).map(([name, schema]) => `export type ${name} = ${typeOf(schema)};`);
fs.writeFileSync(output, `${lines.join('\n')}\n`);
