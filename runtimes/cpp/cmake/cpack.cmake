# Read by cpack for each package: ours contains a library that Debian also has, so it is installed outside of Debian's folders.
if(CPACK_GENERATOR STREQUAL "DEB")
  set(CPACK_PACKAGING_INSTALL_PREFIX /opt/t2r)
endif()
