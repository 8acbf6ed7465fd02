#ifndef HEADRACE_TESTS_SIMULATION_FAULTS_H_
#define HEADRACE_TESTS_SIMULATION_FAULTS_H_

// Test only. What goes wrong, and when: drawn before the run begins, from the options' rates.

#include "tests/simulation/job.h"

namespace headrace::simulation {

void ScheduleFaults(Job* job);

}  // namespace headrace::simulation

#endif  // HEADRACE_TESTS_SIMULATION_FAULTS_H_
