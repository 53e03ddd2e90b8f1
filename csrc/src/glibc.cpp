// One build goes into images with a glibc as old as 2.28, whatever this machine has: what the C++ runtime
// would take in a newer version is bound to the first one here. The linker sends calls of X to __wrap_X
// (--wrap in CMakeLists).
#if defined(EBB_OLD_GLIBC)

#include <pthread.h>

extern "C" {

int ebb_first_pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
int ebb_first_pthread_join(pthread_t, void**);
__asm__(".symver ebb_first_pthread_create, pthread_create@GLIBC_2.2.5");
__asm__(".symver ebb_first_pthread_join, pthread_join@GLIBC_2.2.5");

int __wrap_pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                          void* argument);
int __wrap_pthread_join(pthread_t thread, void** result);

int __wrap_pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                          void* argument) {
  return ebb_first_pthread_create(thread, attributes, start, argument);
}

int __wrap_pthread_join(pthread_t thread, void** result) { return ebb_first_pthread_join(thread, result); }

// glibc 2.32 has it; false there lets reference counts do without atomic instructions. Here they always use
// them.
char __libc_single_threaded = 0;
}

#endif
