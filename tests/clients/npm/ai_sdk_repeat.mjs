// The AI SDK with a tool, then again with all of its messages. usage: URL MODEL STORE
import { createOpenAI } from '@ai-sdk/openai';
import { generateText, stepCountIs, tool } from 'ai';
import { z } from 'zod';

const [url, name, store] = process.argv.slice(2);
const look_up = tool({
  description: 'Look a word up.',
  inputSchema: z.object({ word: z.string() }),
  execute: async () => 'remember:COLOUR=teal',
});
const common = {
  model: createOpenAI({ baseURL: url, apiKey: 'none' }).responses(name),
  tools: { look_up },
  stopWhen: stepCountIs(4),
  providerOptions: { openai: { store: store === 'true' } },
};
const messages = [{ role: 'user', content: 'Look it up.' }];
const { response } = await generateText({ ...common, messages });
messages.push(...response.messages, { role: 'user', content: 'recall:COLOUR' });
await generateText({ ...common, messages });
