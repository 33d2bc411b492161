# A toolchain file for zig, a compiler that has headers and C libraries of other systems. The libraries need no C++ library.
#
#   T2R_ZIG         the program, as in the Python package ziglang
#   T2R_ZIG_TARGET  PROCESSOR-SYSTEM, as zig writes it: x86_64-windows-gnu
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES T2R_ZIG T2R_ZIG_TARGET)
if(NOT T2R_ZIG_TARGET MATCHES "^([a-z0-9_]+)-(linux|windows|macos)")
  message(FATAL_ERROR "expected a target of zig for linux, windows or macos; received '${T2R_ZIG_TARGET}'; set T2R_ZIG_TARGET")
endif()
set(CMAKE_SYSTEM_PROCESSOR ${CMAKE_MATCH_1})
set(T2R_SYSTEM_linux Linux)
set(T2R_SYSTEM_windows Windows)
set(T2R_SYSTEM_macos Darwin)
set(CMAKE_SYSTEM_NAME ${T2R_SYSTEM_${CMAKE_MATCH_2}})
if(CMAKE_SYSTEM_NAME STREQUAL "Darwin")
  # cmake sets the first by the version of the macOS that it runs on; zig's linker knows no bundles
  set(CMAKE_USER_MAKE_RULES_OVERRIDE ${CMAKE_BINARY_DIR}/zig-rules.cmake)
  file(WRITE ${CMAKE_USER_MAKE_RULES_OVERRIDE} "set(CMAKE_SHARED_LIBRARY_RUNTIME_C_FLAG -Wl,-rpath,)
set(CMAKE_SHARED_MODULE_CREATE_CXX_FLAGS -dynamiclib)\n")
endif()

# -s: no debugging information, of which zig's C++ library alone has 14 MB; this machine's strip cannot read the files.
# In the first of the flags: with others, as cmake's first checks have, zig would compile its C++ library a second time.
set(CMAKE_C_COMPILER ${T2R_ZIG} cc -s -target ${T2R_ZIG_TARGET})
set(CMAKE_CXX_COMPILER ${T2R_ZIG} c++ -s -target ${T2R_ZIG_TARGET})
# cmake runs these as programs of one word
foreach(T2R_PROGRAM ar ranlib dlltool)
  set(T2R_FILE ${CMAKE_BINARY_DIR}/zig-${T2R_PROGRAM})
  file(WRITE ${T2R_FILE} "#!/bin/sh\nexec '${T2R_ZIG}' ${T2R_PROGRAM} \"$@\"\n")
  file(CHMOD ${T2R_FILE} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
  string(TOUPPER CMAKE_${T2R_PROGRAM} T2R_VARIABLE)
  set(${T2R_VARIABLE} ${T2R_FILE})
endforeach()
set(CMAKE_RC_COMPILER ${T2R_ZIG})  # cmake asks for one on Windows; there are no resources

# a macro of Microsoft's headers, which ONNX Runtime's use on Windows
set(CMAKE_CXX_FLAGS_INIT "\"-D_Return_type_success_(x)=\"")
# The linker writes final files: a program that edits one would break the signature that macOS asks for.
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_BUILD_WITH_INSTALL_NAME_DIR ON)
set(CMAKE_INSTALL_NAME_DIR @rpath)
