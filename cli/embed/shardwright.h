/* SPDX-License-Identifier: Apache-2.0
 *
 * The shared library libshardwright: the planner for programs in other languages. One narrow door:
 * the words of a command line go in, its exit code and texts come out. With --json these are the
 * documents of the command line, so whatever verbs gain is here at once.
 *
 *   shardwright_call* call = shardwright_new_call();
 *   int code = shardwright_run(call, 5, words);       // "predict", "--model", "llama-3-8b", ...
 *   puts(shardwright_results(call));
 *   shardwright_end_call(call);
 *
 * Calls are independent of each other and may run on several threads at once; each is run once.
 * Texts are UTF-8, end with a zero and live as long as the call.
 */
#ifndef SHARDWRIGHT_EMBED_SHARDWRIGHT_H
#define SHARDWRIGHT_EMBED_SHARDWRIGHT_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shardwright_call shardwright_call;

/* The folder with the data that ships (profiles/data), if not what SHARDWRIGHT_DATA says. First of
 * all. */
void shardwright_set_data(const char* folder);

/* Null when memory is out. */
shardwright_call* shardwright_new_call(void);
/* Runs the program with `count` words, the verb first; returns its exit code. */
int shardwright_run(shardwright_call* call, int count, const char* const* words);
/* From another thread: a search ends soon, with what it found so far. */
void shardwright_stop(shardwright_call* call);
/* What it printed on stdout, and on stderr: notes, and "error: ..." where it failed. */
const char* shardwright_results(const shardwright_call* call);
const char* shardwright_messages(const shardwright_call* call);
void shardwright_end_call(shardwright_call* call);

/* How the program is started as a process of its own, for a verb that starts it again (mcp), where
 * the executable of this process is another, such as an interpreter: words that arguments follow.
 */
void shardwright_set_own_start(int count, const char* const* words);
/* The program itself, on stdout, stderr and the signals of this process; argv[0] is its name. */
int shardwright_program(int argc, const char* const* argv);

/* For fits of the constants that ship (profiles/research); whoever predicts needs none of it. */
typedef struct shardwright_kernels shardwright_kernels;

/* Kernels of one kind on a GPU whose cost values at `paths` ("gemm.e") are going to move. `shapes`:
 * rows of the kind's columns, as profiles/research/product.py lists them. Null where something is
 * unknown: see shardwright_fit_message. */
shardwright_kernels* shardwright_new_kernels(const char* kind, const char* gpu, int rows,
                                             const double* shapes, int count,
                                             const char* const* paths);
/* Seconds of each row with these values. */
void shardwright_kernel_times(shardwright_kernels* kernels, const double* values, double* seconds);
void shardwright_end_kernels(shardwright_kernels* kernels);
/* {"ranges": .., "seen": ..} that the runs of a ledger cover; null where it cannot be read. Lives
 * until the next call. */
const char* shardwright_covered(const char* ledger);
/* Published trainings in JSON, with the hours of their ideal steps where `analytic_mfu`, the share
 * of the peak of steps that cannot be planned, is above 0. Null and lifetime as above. */
const char* shardwright_trainings(double analytic_mfu);
const char* shardwright_fit_message(void);

#ifdef __cplusplus
}
#endif

#endif
