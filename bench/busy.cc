#include "bench/busy.h"

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace headrace::bench {

double BusySeconds() {
  std::ifstream file("/proc/stat");
  std::string cpu;
  double field, busy = 0;
  file >> cpu;
  // user nice system idle iowait irq softirq steal
  for (int i = 0; i < 8 && file >> field; ++i) {
    if (i != 3 && i != 4) busy += field;
  }
  return busy / static_cast<double>(sysconf(_SC_CLK_TCK));
}

double TreeCpuSeconds() {
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  double sum = 0;
  for (int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    getrusage(who, &usage);
    sum += seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }
  return sum;
}

}  // namespace headrace::bench
