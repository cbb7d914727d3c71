// SPDX-License-Identifier: Apache-2.0
// Prices that the user gives, of clusters by name: the flag --price, "dgx-h100=2.10;p5=3".
import {setFlag, state} from './store.js';

const given = () => new Map((state.flags.get('price') || '').split(';').filter(Boolean).map((pair) => pair.split('=')));

export const priceOf = (cluster) => given().get(cluster) || '';

export function setPrice(cluster, usdAnHour) {
  const prices = given();
  if (usdAnHour) prices.set(cluster, usdAnHour);
  else prices.delete(cluster);
  setFlag('price', [...prices].map(([name, usd]) => `${name}=${usd}`).join(';'));
}
