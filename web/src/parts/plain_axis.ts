// Texts of the axes of pictures that are not drawn by uPlot.

const RAISED: Record<string, string> = { '-': '⁻', '0': '⁰', '1': '¹', '2': '²', '3': '³', '4': '⁴', '5': '⁵', '6': '⁶', '7': '⁷', '8': '⁸', '9': '⁹' };

/** "2⁻²⁴" */
export function powerOfTwo(exponent: number): string {
  return `2${[...String(exponent)].map((c) => RAISED[c] ?? c).join('')}`;
}
