// The AI SDK over HTTP: generateText and streamText, each with a tool. usage: URL MODEL
import { createOpenAI } from '@ai-sdk/openai';
import { generateText, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';

const [url, name] = process.argv.slice(2);
const model = createOpenAI({ baseURL: url, apiKey: 'none' }).responses(name);
const asked = [];
const tools = {
  look_up: tool({
    description: 'Look a word up.',
    inputSchema: z.object({ word: z.string() }),
    execute: async ({ word }) => {
      asked.push(word);
      return 'a colour';
    },
  }),
};
const common = { model, tools, stopWhen: stepCountIs(4) };

const made = await generateText({ ...common, prompt: 'Look it up.' });
const streamed = streamText({ ...common, prompt: 'Look it up once more.' });
let text = '';
for await (const delta of streamed.textStream) text += delta;
const warnings = [...(made.warnings ?? []), ...((await streamed.warnings) ?? [])];
console.log(JSON.stringify({
  asked: asked.length,
  generated: made.text,
  steps: made.steps.length,
  usage: made.totalUsage,
  streamed: text,
  finish: await streamed.finishReason,
  warnings,
}));
