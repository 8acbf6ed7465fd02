#ifndef HEADRACE_BENCH_BUSY_H_
#define HEADRACE_BENCH_BUSY_H_

namespace headrace::bench {

// CPU-seconds that all processors were busy, or not given to this machine, since it was started.
double BusySeconds();
// Of this process, and of all processes that it, and they, have waited for.
double TreeCpuSeconds();

}  // namespace headrace::bench

#endif  // HEADRACE_BENCH_BUSY_H_
